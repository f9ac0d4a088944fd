"""Answers in JSON, at once or as server-sent events, and requests whose client may leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import StreamingResponse

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.serving.http.errors import HttpError

__all__ = ["event_stream", "json_text", "while_connected"]

T = TypeVar("T")

ErrorWriter = Callable[[HttpError], dict[str, Any]]
"""Writes an error as a client expects it."""
PIECE = 1 << 14
"""Elements of an array that are written together. Python's writer of JSON lets no other thread run meanwhile."""


async def event_stream(
    request: Request, events: AsyncIterator[dict[str, Any]], write_error: ErrorWriter, *, end: str = "", name: str = ""
) -> StreamingResponse:
    """Send objects as server-sent events, each as `json_text`.

    An error before the first event is raised, so that it gets a status of its own; a later one is the last event.

    Parameters
    ----------
    request
        The request, whose client may leave before the first event.
    events
        The objects. They are closed when the client leaves.
    write_error
        Writes an error of the objects.
    end
        Data of one more event at the end.
    name
        The field of an object that names its event, if it has one.
    """
    first = await while_connected(request, _first(events))

    async def lines() -> AsyncIterator[str]:
        try:
            if first is not None:
                yield await _line(first, name)
                async for event in events:
                    yield await _line(event, name)
            if end:
                yield f"data: {end}\n\n"
        except HttpError as error:
            yield await _line(write_error(error), "")
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _first(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(events, None)


async def _line(event: dict[str, Any], name: str) -> str:
    head = f"event: {event[name]}\n" if name in event else ""
    return f"{head}data: {await json_text(event)}\n\n"


async def json_text(fields: Mapping[str, Any]) -> str:
    """Write an object in JSON, in a thread of its own if it is large, so that other clients are served meanwhile.

    An array becomes a flat list, or its only element, as Triton writes it; NaN and infinity in it become null.
    """
    size = sum(value.size for value in fields.values() if isinstance(value, np.ndarray))
    return _written(fields) if size <= PIECE else await asyncio.to_thread(_written, fields)


def _written(fields: Mapping[str, Any]) -> str:
    texts = (_array(each) if isinstance(each, np.ndarray) else _json(each) for each in fields.values())
    return f"{{{','.join(f'{_json(name)}:{text}' for name, text in zip(fields, texts, strict=True))}}}"


def _array(array: Array) -> str:
    flat = array.ravel()
    pieces = (_json(_elements(flat[begin : begin + PIECE]))[1:-1] for begin in range(0, flat.size, PIECE))
    return next(pieces) if flat.size == 1 else f"[{','.join(pieces)}]"


def _elements(flat: Array) -> list[Any]:
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return [each if np.isfinite(each) else None for each in flat.tolist()]
    return [each.decode() if isinstance(each, bytes) else each for each in flat.tolist()]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await work whose request is dropped if the client leaves. Raises what the work raises, and CancelledError."""
    running = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise HttpError(499, "the client has left")
        return await running
    finally:
        for each in (running, leaving):
            each.cancel()
        await asyncio.gather(running, leaving, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
