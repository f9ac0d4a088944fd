"""A client's request between an endpoint, which awaits events, and the threads of the dispatcher, which add them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.serving.dispatch.responder import Responder, bytes_fault, deadline_of
from tightbeam.deploy.serving.http.errors import RequestFailed
from tightbeam.deploy.serving.protocol.messages import Event as WorkerEvent
from tightbeam.deploy.serving.protocol.messages import FoundSegment, Refused, Request, Row, Token

__all__ = ["Event", "PendingRequest"]

Event = Token | FoundSegment | Row
"""An event that an endpoint gets."""


class PendingRequest(Responder):
    """A request of an endpoint. Made in the thread of a running event loop.

    Parameters
    ----------
    inputs
        Arrays [b, ...] by the names of Triton's inputs.
    parameters
        A JSON object.
    rows
        Rows of the request, b.
    stream
        Give tokens and segments before the rows.
    folder
        The bundle's folder, whose path no client is told.
    """

    def __init__(self, inputs: dict[str, Array], parameters: str, *, rows: int, stream: bool, folder: str) -> None:
        super().__init__(folder)
        self._inputs, self._parameters, self._stream = inputs, parameters, stream
        self.size, self.deadline_s = rows, deadline_of(parameters)
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | RequestFailed] = asyncio.Queue()
        self._left = False

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events, the last one being a `Row`. Raises RequestFailed."""
        left = self.size
        while left:
            event = await self._events.get()
            if isinstance(event, RequestFailed):
                raise event
            left -= isinstance(event, Row)
            yield event

    def leave(self) -> None:
        """Drop the request; if it still runs, the worker drops it within some milliseconds."""
        self._left = True
        self._inputs = {}  # files of a request that waits for a place are held no longer

    # In the threads of the dispatcher

    def read(self, number: int) -> Request | None:
        inputs = self._inputs  # the client may leave at any time
        if self._left:
            self.outcome = "cancelled"
            return None
        if fault := bytes_fault(inputs):
            self.fail(fault, client_error=True)
            return None
        return Request(number, inputs, self._parameters, stream=self._stream)

    def was_cancelled(self) -> bool:
        if not self.open or not self._left:
            return False
        self.outcome = "cancelled"
        return True

    def add(self, event: WorkerEvent) -> None:
        if not self.open:
            return
        if isinstance(event, Refused):
            self.fail(event.message, client_error=event.client_error)
        elif isinstance(event, Token | FoundSegment | Row) and self.is_new(event):
            if len(self.rows) == self.size:
                self.outcome = "finished"
            self._put(event)

    def fail(self, reason: str, *, client_error: bool) -> None:
        if self.open:
            self.outcome = "refused" if client_error else "failed"
            told = self.told(reason, failed=not client_error)
            self._put(RequestFailed(told, client_error=client_error))

    def _put(self, event: Event | RequestFailed) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
