"""The HTTP server in a thread of the tests, with models in workers of their own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from tightbeam.deploy.documents.glossary import Term
from tightbeam.deploy.serving.http.app import PrometheusMetrics, make_app
from tightbeam.deploy.serving.http.guards import Limits
from tightbeam.deploy.serving.http.model import ModelOptions, ServedModel
from tightbeam.deploy.serving.http.run import config_of

__all__ = ["HttpServer", "http_server"]


@dataclass
class HttpServer:
    """A server that runs. ``log``: the records of its requests."""

    url: str
    models: Mapping[str, ServedModel]
    log: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def http_server(
    bundles: Mapping[str, Path],
    *,
    limits: Limits | None = None,
    pairs: Mapping[str, tuple[str, str]] | None = None,
    origins: Sequence[str] = (),
    glossaries: Mapping[str, Sequence[Term]] | None = None,
    **options: Any,
) -> Iterator[HttpServer]:
    """Serve bundles by name. ``options``: fields of `ModelOptions`."""
    metrics = PrometheusMetrics()
    how = ModelOptions(**{"threads": 1, **options})
    models: dict[str, ServedModel] = {}
    try:
        for name, path in bundles.items():
            models[name] = ServedModel(name, path, how, metrics.of, (pairs or {}).get(name))
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        running = HttpServer(f"http://127.0.0.1:{listening.getsockname()[1]}", models)
        app = make_app(
            models, metrics, limits=limits or Limits(), origins=origins, log=running.log.append, glossaries=glossaries
        )
        server = uvicorn.Server(config_of(app, 30))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield running
        server.should_exit = True
        thread.join()
    finally:
        for model in models.values():
            model.close()
