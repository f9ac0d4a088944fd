"""The application: models, endpoints, and errors as each client expects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tightbeam.deploy.documents.glossary import Term
from tightbeam.deploy.errors import first_line
from tightbeam.deploy.serving.dispatch.metrics import COUNTERS, GAUGES, Metrics
from tightbeam.deploy.serving.http.errors import HttpError, ModelUnknown, openai_error, plain_error
from tightbeam.deploy.serving.http.generate import generate_routes
from tightbeam.deploy.serving.http.guards import Guards, Limits
from tightbeam.deploy.serving.http.libretranslate import translation_routes
from tightbeam.deploy.serving.http.model import ServedModel
from tightbeam.deploy.serving.http.openai.audio import audio_routes
from tightbeam.deploy.serving.http.openai.realtime import realtime_routes
from tightbeam.deploy.serving.http.openai.settings import now
from tightbeam.deploy.serving.http.openai.text import text_routes

__all__ = ["PrometheusMetrics", "make_app"]


class PrometheusMetrics:
    """The metrics of all models of a server, by the names that they have behind Triton."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry, names = self.registry, ["model"]
        self._counters = {
            name: Counter(name.removesuffix("_total"), text, names, registry=registry)
            for name, text in COUNTERS.items()
        }
        self._gauges = {name: Gauge(name, text, names, registry=registry) for name, text in GAUGES.items()}

    def of(self, model: str, max_batch_size: int) -> Metrics:
        """Return the metrics of a model, whose requests have ``max_batch_size`` rows at most."""
        counters = {name: counter.labels(model).inc for name, counter in self._counters.items()}
        return Metrics(
            counters, {name: gauge.labels(model).set for name, gauge in self._gauges.items()}, max_batch_size
        )


def make_app(
    models: Mapping[str, ServedModel],
    metrics: PrometheusMetrics,
    *,
    limits: Limits,
    origins: Sequence[str] = (),
    log: Callable[[dict[str, Any]], None] | None = None,
    glossaries: Mapping[str, Sequence[Term]] | None = None,
) -> ASGIApp:
    """Make the application.

    Parameters
    ----------
    models
        The served models by name.
    metrics
        Their metrics.
    limits
        Limits of a request.
    origins
        Origins of pages that browsers may let use the server (CORS).
    log
        Takes a record of each request.
    glossaries
        The terms of glossaries that requests may name.
    """
    app = FastAPI(title="Tightbeam", docs_url=None, redoc_url=None)
    started = now()

    def find(name: str) -> ServedModel:
        if name in models:
            return models[name]
        if not name and len(models) == 1:
            return next(iter(models.values()))
        shown = f"no model is named {name[:100]!r}" if name else "the request names no model"
        raise ModelUnknown(f"{shown}; pass one of {', '.join(models)}")

    each = (
        text_routes(find),
        audio_routes(find),
        realtime_routes(find),
        generate_routes(find),
        translation_routes(models, glossaries or {}),
    )
    for routes in each:
        app.include_router(routes)

    def card(model: ServedModel) -> dict[str, Any]:
        kind = "decoder-only" if model.manifest.sizes.decoder_only else "text"
        kind = "speech" if model.manifest.speech else kind if model.reads_text else "image"
        chat = model.manifest.tokenizer is not None and model.manifest.tokenizer.has_chat_template
        own = {"kind": kind, "family": model.manifest.family, "chat": chat, "timestamps": model.has_timestamps}
        own["words"] = model.has_times_of_words
        own["translates"] = bool(model.reads_text and model.manifest.generation.get("lang_to_id"))
        return {"id": model.name, "object": "model", "created": started, "owned_by": "tightbeam", **own}

    @app.get("/v1/models")
    async def list_models() -> Response:
        return JSONResponse({"object": "list", "data": [card(model) for model in models.values()]})

    @app.get("/v1/models/{name:path}")
    async def show_model(name: str) -> Response:
        return JSONResponse(card(find(name)))

    @app.api_route("/health/live", methods=["GET", "HEAD"])
    async def live() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/health/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        down = [model.name for model in models.values() if not model.ready]
        status = f"not ready: {', '.join(down)}" if down else "ok"
        return JSONResponse({"status": status}, 503 if down else 200)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return PlainTextResponse(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @app.api_route("/", methods=["GET", "HEAD"])
    async def show_page() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    _add_errors(app)
    guarded = Guards(app, limits, _send_error, log, origins)
    if not origins:
        return guarded
    return CORSMiddleware(  # around all, since a page is to read every error
        guarded, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"], expose_headers=["X-Request-ID"]
    )


PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; media-src blob:; "
    "connect-src 'self'"
)
"""The page asks nobody but this server."""


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HttpError)
    async def of_request(request: Request, error: HttpError) -> Response:
        return _error_response(request.scope, error)

    @app.exception_handler(HTTPException)
    async def of_routing(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, HttpError):  # of reading the body
            return _error_response(request.scope, error.__cause__)
        message = (
            f"there is no {request.method} {request.url.path[:200]}"
            if error.status_code in (404, 405)
            else error.detail
        )
        response = _error_response(request.scope, HttpError(error.status_code, str(message)))
        response.headers.update(error.headers or {})  # Allow
        return response

    @app.exception_handler(ClientDisconnect)
    async def of_leaving(request: Request, error: ClientDisconnect) -> Response:
        return _error_response(request.scope, HttpError(499, "the client has left in its body"))

    @app.exception_handler(Exception)  # uvicorn writes the traceback
    async def of_us(request: Request, error: Exception) -> Response:
        message = f"{type(error).__name__}: {first_line(error)}; this is a defect of Tightbeam"
        return _error_response(request.scope, HttpError(500, message))


def _error_response(scope: Scope, error: HttpError) -> Response:
    write = openai_error if scope["path"].startswith("/v1/") else plain_error
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return JSONResponse(write(error), error.status, headers)


async def _send_error(scope: Scope, error: HttpError, receive: Receive, send: Send) -> None:
    await _error_response(scope, error)(scope, receive, send)
