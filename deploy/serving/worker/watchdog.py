"""Watchdog of the backend's process, run by the worker: it knows when that process, or the server, is killed.

Triton's Python backend refuses every request from then on, and does not restart the process. So the worker removes the
shared memory that is left, and asks the server to reload the model.

A backend that outlives its server is killed (``protocol/server_end.py``). The worker does it too, for the backend may
have no native library.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tightbeam.deploy.serving.protocol.log import log
from tightbeam.deploy.serving.protocol.messages import Server
from tightbeam.deploy.serving.protocol.server_end import STUCK_SECONDS, region_path

__all__ = ["reload_model", "watch_server"]

EXIT_GRACE_SECONDS = 0.3
"""Grace period for the server to exit, to tell a shutdown from a crashed stub."""
MIN_LIFETIME_SECONDS = 10.0
"""Shortest time between two loads of a model, so that a model that crashes at once is not reloaded in a tight loop."""
LOAD_TIMEOUT_SECONDS = 600.0
"""Timeout of a request to unload or load the model."""


def reload_model(server: Server, lifetime_seconds: float) -> None:
    """Remove the shared memory of a killed backend, and have its server reload the model unless the server ended too.

    The outcome is a line on standard error, which is the server's log.

    Parameters
    ----------
    server
        The backend's server.
    lifetime_seconds
        How long the backend ran. The reload waits until `MIN_LIFETIME_SECONDS` after its start.
    """
    ended = _ended(server.pid, EXIT_GRACE_SECONDS)
    if server.region:
        with suppress(OSError):
            region_path(server).unlink()
    if ended:
        return
    _log(f"the backend of model {server.model} was killed; loading it again")
    time.sleep(max(0.0, MIN_LIFETIME_SECONDS - lifetime_seconds))
    try:
        for action in ("unload", "load"):
            _post(f"{server.url}/v2/repository/models/{server.model}/{action}")
    except urllib.error.HTTPError as error:
        fix = "start the server with --model-control-mode=explicit"
        _log(f"model {server.model} stays down: {_reason(error)}; {fix}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        _log(f"model {server.model} stays down: no server at {server.url} ({error}); see its README")
    else:
        _log(f"model {server.model} is loaded again")


def watch_server(server: Server) -> None:
    """Start a thread that kills the backend, this process's parent, if it outlives its server by `STUCK_SECONDS`.

    The server may have ended before this process began. The backend is known by the shared memory that its command line
    names, so that no other process is killed.
    """
    threading.Thread(target=_kill_a_stuck_backend, args=(server, os.getppid()), name="watchdog", daemon=True).start()


def _kill_a_stuck_backend(server: Server, backend: int) -> None:
    if not server.region or server.region not in Path(f"/proc/{backend}/cmdline").read_text(errors="replace"):
        return
    if not _ended(server.pid, None):
        return
    time.sleep(STUCK_SECONDS)
    if os.getppid() == backend:
        _log(f"the server has ended, and the backend of model {server.model} has not; it is killed")
        with suppress(OSError):
            os.kill(backend, signal.SIGKILL)


def _ended(pid: int, within_s: float | None) -> bool:
    """True if a process ends within so many seconds, or, with None, at any time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel or sandbox without pidfd
        return False
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def _post(url: str) -> None:
    request = urllib.request.Request(url, data=b"{}", method="POST")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not through a proxy of the environment
    with direct.open(request, timeout=LOAD_TIMEOUT_SECONDS) as response:
        response.read()


def _reason(error: urllib.error.HTTPError) -> str:
    """The error message in the server's reply, or else its status."""
    with suppress(ValueError, OSError, http.client.HTTPException):
        reply = json.loads(error.read())
        if isinstance(reply, dict) and reply.get("error"):
            return " ".join(str(reply["error"]).split())
    return f"the server answered {error.code} {error.reason}"


def _log(message: str) -> None:
    log(f"tightbeam {time.strftime('%H:%M:%S')}: {message}")
