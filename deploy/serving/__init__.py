"""Serving of a bundle with Triton Inference Server.

    repository.py, config.py, readme.py    bundle -> model repository (the command is triton-repo)
    model.py                    the file that Triton's Python backend loads; it calls backend.py
    backend.py                  in Triton's process: requests to the worker, its events to responses (responses.py)
                                and metrics (metrics.py)
    tensors.py                  the names of inputs and outputs
    messages.py                 the messages between backend and worker
    worker_process.py           the worker as the backend's child: start, run, stop
    worker.py                   a process of its own, which holds the model: requests.py checks each request, in threads
                                of parsing.py where it has files; running.py runs them together
    watchdog.py                 has the server reload the model when the backend is killed

Triton's Python backend does not restart a process that ended. So everything that can end a process (the model with its
memory and its native code) is in the worker, which the backend restarts; only the requests that it ran are lost.
"""
