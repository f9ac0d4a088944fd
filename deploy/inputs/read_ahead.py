"""Read ahead: a thread takes items from an iterator into a bounded queue before they are used."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Generic, TypeVar

from tightbeam.deploy.errors import InputError

__all__ = ["ReadAhead"]

T = TypeVar("T")
CAPACITY = 64
"""The most items in the queue."""
POLL_S = 0.1
"""Seconds after which the thread notices that nobody wants its items."""


class ReadAhead(Generic[T]):
    """A thread that reads ahead. It starts when the context is entered, and takes nothing more after its end.

    Parameters
    ----------
    items : iterable
        The items. If they are a generator, the thread closes it.
    capacity : int
        The most items in the queue.
    joined : bool
        Wait for the thread at the end of the context. Not for a thread that waits for a line of standard input, which
        would not end.

    Attributes
    ----------
    ended : bool
        True once all items were returned.
    """

    def __init__(self, items: Iterable[T], capacity: int = CAPACITY, *, joined: bool = False) -> None:
        self._items, self._joined = items, joined
        self._queue: Queue[tuple[T | None, BaseException | None]] = Queue(capacity)
        # A thread that waits for a line of standard input must not keep the process alive.
        self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)
        self._unwanted = threading.Event()
        self._failure: BaseException | None = None
        self._impatient = False
        self.ended = False

    def __enter__(self) -> ReadAhead[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._unwanted.set()
        if self._joined:
            self._thread.join()
        if kind is None and self._failure is not None:
            raise self._failure

    @property
    def closed(self) -> bool:
        """True after the end of the context."""
        return self._unwanted.is_set()

    def get(self, timeout: float | None = None) -> T | None:
        """Return the next item; None at the end, or if none comes in time.

        Parameters
        ----------
        timeout : float, optional
            The most seconds to wait. By default the call waits until an item comes. After a call that waited in vain,
            the next calls return at once, until an item has come.

        Raises
        ------
        InputError
            The iterator raised it. Its other exceptions end the items, and are raised when the context ends.
        """
        if self.ended:
            return None
        try:
            if timeout is None:
                item, failure = self._wait()
            elif self._impatient:
                item, failure = self._queue.get_nowait()
            else:
                item, failure = self._queue.get(timeout=timeout)
        except Empty:
            self._impatient = True
            return None
        self._impatient = False
        self.ended = item is None
        if isinstance(failure, InputError):
            raise failure
        self._failure = failure
        return item

    def _wait(self) -> tuple[T | None, BaseException | None]:
        """Wait for the next entry of the queue, or until another thread ends the context, which counts as the end."""
        while True:
            try:
                return self._queue.get(timeout=POLL_S)
            except Empty:
                if self.closed:
                    return None, None

    def _read(self) -> None:
        failure: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item, None):
                    break
            if isinstance(self._items, Generator):
                self._items.close()
        except BaseException as error:
            failure = error
        self._put(None, failure)

    def _put(self, item: T | None, failure: BaseException | None) -> bool:
        """Put an item into the queue. Returns False if no item is wanted any more."""
        while not self._unwanted.is_set():
            try:
                self._queue.put((item, failure), timeout=POLL_S)
                return True
            except Full:
                continue
        return False
