"""The server's process: uvicorn, until a signal."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from tightbeam.deploy.runtimes.process.freed_memory import return_large_blocks
from tightbeam.deploy.serving.http.openai.realtime import MOST_MESSAGE_BYTES

__all__ = ["config_of", "run_server"]

MOST_CONNECTIONS = 4096
"""Connections beyond which a request is answered with 503."""

MOST_HEADER_BYTES = 1 << 16
"""Bytes of the headers of a request."""


class _Server(uvicorn.Server):
    """A server that says where it listens, and that any second signal ends at once."""

    def __init__(self, config: uvicorn.Config, ready: str) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        print(self._ready, file=sys.stderr, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let running requests end at the first signal; raise KeyboardInterrupt at the second one."""
        if self.should_exit:
            raise KeyboardInterrupt
        super().handle_exit(sig, frame)


def run_server(app: ASGIApp, listening: socket.socket, *, grace_s: int, names: Sequence[str]) -> None:
    """Serve an application until SIGTERM or Ctrl-C. Running requests then have ``grace_s`` seconds to end.

    Parameters
    ----------
    app
        The application.
    listening
        A bound socket.
    grace_s
        Seconds that running requests have.
    names
        Names of the models, which are printed.
    """
    return_large_blocks()
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    ready = f"Ready: http://{shown}:{port} serves {', '.join(names)}; Ctrl-C ends it."
    _Server(config_of(app, grace_s), ready).run(sockets=[listening])


def config_of(app: ASGIApp, grace_s: int) -> uvicorn.Config:
    """Return how uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http="h11",  # httptools holds headers without any end
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        ws="websockets-sansio" if find_spec("websockets") is not None else "none",
        ws_max_size=MOST_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # a small message would become a large one
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=grace_s,
        backlog=512,
        limit_concurrency=MOST_CONNECTIONS,
    )
