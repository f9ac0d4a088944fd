"""A bundle served by Triton Inference Server.

    repository.py, config.py    bundle -> model repository (the command is triton-repo)
    model.py                    what Triton's Python backend loads; it calls backend.py
    backend.py                  inside Triton: requests to the worker, its events to responses, metrics
    worker.py                   a process of its own, which holds the model; it generates (jobs.py, requests.py)
    watchdog.py                  what a worker does whose backend was killed

Triton's Python backend does not start a process again that ended. So what can end a process, the model with its memory
and its native code, stands in one that is ours: it is started again, and only what it was working on is lost.
"""
