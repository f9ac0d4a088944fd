"""Middleware of every request: an identifier, a key, limits of size, and a line of the log."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tightbeam.deploy.serving.http.errors import HttpError

__all__ = ["API_KEY", "Guards", "Limits", "log_line"]

REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
OPEN = frozenset({"/", "/health", "/health/live", "/health/ready", "/languages"})
"""Paths that need no key."""
KEY_IN_BODY = frozenset({"/translate", "/detect"})
"""Paths whose key may be a field of the body, `API_KEY`, as LibreTranslate's clients send it."""
API_KEY = "api_key"
KEY_PROTOCOL = "openai-insecure-api-key."
"""Beginning of the protocol of a WebSocket that is a key."""


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes
    ----------
    body_bytes : int
        Bytes of a body with files.
    json_bytes : int
        Bytes of any other body. It is parsed between two events of all clients, so it is smaller.
    held_bytes : int
        Bytes of the bodies of all requests that have no answer yet.
    silence_s : float
        Seconds that the next part of a body may take.
    keys : sequence of str
        Keys that clients may have; empty if they need none.
    """

    body_bytes: int = 1 << 28
    json_bytes: int = 1 << 23
    held_bytes: int = 1 << 30
    silence_s: float = 30
    keys: Sequence[str] = field(default=(), repr=False)

    def allows(self, key: str) -> bool:
        """Return True for one of the keys. The time that this takes does not tell how much of a key is right."""
        given = key.encode("utf-8", "surrogatepass")
        return any([hmac.compare_digest(given, each.encode()) for each in self.keys])


def log_line(record: dict[str, Any]) -> None:
    """Write a record to standard output as a line of JSON."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


class Guards:
    """Middleware.

    Parameters
    ----------
    app
        The application behind it.
    limits
        The limits of a request.
    write_error
        Sends an error: a function of the scope, the error, receive and send.
    log
        Takes a record of each request, which holds no text of a user.
    origins
        Origins of pages whose WebSockets are let in, beside the server's own; "*" for all.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        write_error: Callable[[Scope, HttpError, Receive, Send], Any],
        log: Callable[[dict[str, Any]], None] | None,
        origins: Sequence[str] = (),
    ) -> None:
        self._app, self._limits, self._write_error, self._log = app, limits, write_error, log
        self._origins = origins
        self._held = 0  # bytes of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        identifier = asked if REQUEST_ID.fullmatch(asked) else secrets.token_hex(12)
        start, status, body = time.monotonic(), 0, _Body()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = identifier
            await send(message)

        try:
            error = self._refusal(scope, headers)
            if error is not None:
                await self._write_error(scope, error, receive, answer)
            else:
                await self._app(scope, self._counted(body, headers, receive), answer)
        except asyncio.CancelledError:  # the server ends; a stream is cut, so that no client takes it for whole
            if not status:
                ending = HttpError(503, "the server ends; send the request again later")
                await self._write_error(scope, ending, receive, answer)
        finally:
            self._held -= body.read
            if self._log is not None:
                self._log(
                    {
                        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                        "id": identifier,
                        "method": scope["method"],
                        "path": scope["path"][:200],
                        "status": status,
                        "ms": round(1000 * (time.monotonic() - start), 1),
                        **scope.get("state", {}).get("log", {}),
                    }
                )

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket, or refuse it by the status 403."""
        start, status = time.monotonic(), 101
        try:
            if self._allows_socket(scope):
                await self._app(scope, receive, send)
            else:
                status = 403
                await receive()
                await send({"type": "websocket.close", "code": 1008})
        finally:
            if self._log is not None:
                self._log(
                    {
                        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                        "id": secrets.token_hex(12),
                        "method": "WEBSOCKET",
                        "path": scope["path"][:200],
                        "status": status,
                        "ms": round(1000 * (time.monotonic() - start), 1),
                    }
                )

    def _allows_socket(self, scope: Scope) -> bool:
        """Return True for a WebSocket with a key, if keys are asked for, and from a page that may ask.

        Browsers let any page open one, so the origin is compared here. They cannot send a header, so the key may be a
        protocol, as OpenAI's clients send it.
        """
        headers = Headers(scope=scope)
        origin = headers.get("origin", "").lower()
        known = "*" in self._origins or origin in self._origins
        if origin and not known and origin.partition("://")[2] != headers.get("host", "").lower():
            return False
        if not self._limits.keys:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        keys = [given.strip()] if kind.lower() == "bearer" else []
        keys += [each.removeprefix(KEY_PROTOCOL) for each in scope["subprotocols"] if each.startswith(KEY_PROTOCOL)]
        return any(map(self._limits.allows, keys))

    def _refusal(self, scope: Scope, headers: Headers) -> HttpError | None:
        state = scope.setdefault("state", {})
        state["limits"] = self._limits
        if self._limits.keys and scope["path"] not in OPEN:
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = self._limits.allows(given.strip()) if kind.lower() == "bearer" else False
            state["without_key"] = not right
            if not right and scope["path"] not in KEY_IN_BODY:
                return HttpError(
                    401,
                    "the key is missing or wrong; send the header Authorization: Bearer KEY",
                    code="invalid_api_key",
                )
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._most(headers):
            return self._too_large(headers)
        return None

    def _most(self, headers: Headers) -> int:
        files = headers.get("content-type", "").startswith("multipart/form-data")
        return self._limits.body_bytes if files else self._limits.json_bytes

    def _too_large(self, headers: Headers) -> HttpError:
        return HttpError(
            413, f"the body has more than {self._most(headers):,} bytes; send less, or files as multipart/form-data"
        )

    def _counted(self, body: _Body, headers: Headers, receive: Receive) -> Receive:
        """Return ``receive``, which raises HttpError once bodies are too large, or one takes too long to come."""
        most = self._most(headers)

        async def counted() -> Message:
            if body.whole:  # the next message is that the client has left
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._limits.silence_s)
            except TimeoutError:
                problem = f"the body has not come for {self._limits.silence_s:g} seconds; send it at once"
                raise HttpError(408, problem) from None
            read = len(message.get("body", b""))
            body.read += read
            self._held += read
            body.whole = not message.get("more_body", False)
            if body.read > most:
                raise self._too_large(headers)
            if self._held > self._limits.held_bytes:
                problem = f"requests hold {self._limits.held_bytes:,} bytes already; send the request again later"
                raise HttpError(429, problem, code="rate_limit_exceeded")
            return message

        return counted


@dataclass
class _Body:
    """The part of a body that has come."""

    read: int = 0
    whole: bool = False
