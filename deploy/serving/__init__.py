"""Serving of bundles, with Triton Inference Server or with the HTTP server of this package.

    command.py         triton-repo: bundle -> model repository, which repository/ writes
    local_command.py   serve-local: a server on this machine (server/) for a repository
    model.py           the file of a repository that Triton's Python backend loads; it calls backend/
    backend/           Triton's front: its requests, responses and metrics
    http/              the front of serve-model: endpoints of OpenAI and LibreTranslate
    dispatch/          in the front's process: requests to the worker (dispatcher.py), which worker_process.py starts
                       and stops
    worker/            a process of its own, which holds the model: requests.py checks each request, in threads of
                       parsing.py if it has files; running.py runs them together; watchdog.py asks the server to reload
                       the model if the backend is killed
    protocol/          shared by these: names of inputs and outputs (tensors.py), of files and parameters
                       (parameters.py), and the messages between backend and worker (messages.py)

Triton's Python backend does not restart a process that ended. So everything that can end a process (the model with its
memory and its native code) is in the worker. The backend restarts the worker, and sends it the requests again.
"""
