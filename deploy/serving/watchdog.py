"""A backend that was killed: Triton's Python backend refuses every request from then on, and does not start it again.
Who sees it die tidies up after it, and has the server load the model anew."""

from __future__ import annotations

import http.client
import json
import os
import select
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

__all__ = ["Server", "reload_model"]

EXIT_GRACE_SECONDS = 0.3
"""In which a server ends whose end took the backend with it."""
MIN_LIFETIME_SECONDS = 10.0
"""That a backend lives at least, if loading it again is of any use."""
LOAD_TIMEOUT_SECONDS = 600.0
SHARED_MEMORY = Path("/dev/shm")


class Server(BaseModel):
    """The server that a backend belongs to. ``pid``: its process; ``url``: where it takes HTTP; ``model``: by name;
    ``region``: the name of the shared memory between server and backend."""

    pid: int
    url: str
    model: str
    region: str


def reload_model(server: Server, lived_seconds: float) -> None:
    """Remove the memory that the backend shared with the server, and, if that is there still, have it load the model
    again. Tells on standard error, which is the server's log, what became of it. ``lived_seconds``: how long it lived;
    one that dies at once is not loaded again at once."""
    ended = _ended(server.pid)
    if server.region:
        with suppress(OSError):
            (SHARED_MEMORY / server.region).unlink()
    if ended:
        return
    _tell(f"the backend of model {server.model} was killed; loading it again")
    time.sleep(max(0.0, MIN_LIFETIME_SECONDS - lived_seconds))
    try:
        for action in ("unload", "load"):
            _post(f"{server.url}/v2/repository/models/{server.model}/{action}")
    except urllib.error.HTTPError as error:
        fix = "start the server with --model-control-mode=explicit"
        _tell(f"model {server.model} stays down: {_reason(error)}; {fix}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        _tell(f"model {server.model} stays down: no server at {server.url} ({error}); see its README")
    else:
        _tell(f"model {server.model} is loaded again")


def _ended(pid: int) -> bool:
    """Whether a process ends within `EXIT_GRACE_SECONDS`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel, or a sandbox, without it
        return False
    try:
        return bool(select.select([descriptor], [], [], EXIT_GRACE_SECONDS)[0])
    finally:
        os.close(descriptor)


def _post(url: str) -> None:
    request = urllib.request.Request(url, data=b"{}", method="POST")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    with direct.open(request, timeout=LOAD_TIMEOUT_SECONDS) as response:
        response.read()


def _reason(error: urllib.error.HTTPError) -> str:
    """What the server says, or else the status."""
    with suppress(ValueError, OSError, http.client.HTTPException):
        said = json.loads(error.read())
        if isinstance(said, dict) and said.get("error"):
            return " ".join(str(said["error"]).split())
    return f"the server answered {error.code} {error.reason}"


def _tell(message: str) -> None:
    print(f"tightbeam {time.strftime('%H:%M:%S')}: {message}", file=sys.stderr, flush=True)
