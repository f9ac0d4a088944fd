"""Server-sent events, and requests whose client may leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse

from tightbeam.deploy.serving.http.errors import HttpError

__all__ = ["event_stream", "while_connected"]

T = TypeVar("T")

ErrorWriter = Callable[[HttpError], dict[str, Any]]
"""Writes an error as a client expects it."""


async def event_stream(
    request: Request, events: AsyncIterator[dict[str, Any]], write_error: ErrorWriter, *, end: str = "", name: str = ""
) -> StreamingResponse:
    """Send objects as server-sent events, each as JSON.

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
                yield _line(first, name)
                async for event in events:
                    yield _line(event, name)
            if end:
                yield f"data: {end}\n\n"
        except HttpError as error:
            yield _line(write_error(error), "")
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _first(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(events, None)


def _line(event: dict[str, Any], name: str) -> str:
    head = f"event: {event[name]}\n" if name in event else ""
    return f"{head}data: {json.dumps(event, ensure_ascii=False)}\n\n"


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
