"""The end of the server: a backend that outlives it ends too.

The backend asks the server whether requests are cancelled, among others, and waits for the answer. If the server is
killed meanwhile, the answer never comes. Triton's own check for the server's end waits for that call to return, and
some calls hold the interpreter's lock, so that no thread of Python runs.
"""

from __future__ import annotations

from pathlib import Path

from tightbeam.deploy.serving.protocol.messages import Server
from tightbeam.plugins.end_with import end_with

__all__ = ["STUCK_SECONDS", "end_with_server", "region_path"]

STUCK_SECONDS = 5.0
"""Time for a backend to end by itself, once its server has ended."""


def end_with_server(server: Server) -> None:
    """Have this process, a backend, killed if it outlives its server by `STUCK_SECONDS`.

    Without the native library nothing is done here. The worker kills a backend too, while it lives.
    """
    if server.region:
        message = f"tightbeam: the server has ended, and the backend of model {server.model} has not; it is killed\n"
        end_with(server.pid, STUCK_SECONDS, region_path(server), message)


def region_path(server: Server) -> Path:
    """Return the file of the memory that a backend shares with its server."""
    return Path("/dev/shm", server.region)
