"""Threads that parse requests. Decoding a file may take seconds, and no step should wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.serving.worker.requests import ParsedRequest

__all__ = ["Parsed", "ParsingThreads"]

THREADS = 2
"""Number of threads: one goes on with short recordings while the other reads a long one."""
Parsed = tuple[Request, ParsedRequest | Exception]
"""A request, and its parsed form, or the error of one that cannot be run."""


class ParsingThreads:
    """Parses requests while others run. All methods are for one thread.

    Parameters
    ----------
    parse
        Function of a request, which is called in several threads.
    on_reading
        Function of a request's number, called in its thread before it is parsed.
    """

    def __init__(
        self, parse: Callable[[Request], ParsedRequest], on_reading: Callable[[int], None] = lambda number: None
    ) -> None:
        self._parse, self._on_reading = parse, on_reading
        self._given: SimpleQueue[Request] = SimpleQueue()
        self._parsed: SimpleQueue[Parsed] = SimpleQueue()
        self._open: set[int] = set()
        self._threads: list[threading.Thread] = []

    @property
    def active(self) -> bool:
        """True if a request has not been taken yet."""
        return bool(self._open)

    def put(self, request: Request) -> None:
        """Add a request, which a thread parses."""
        self._open.add(request.number)
        self._given.put(request)
        if len(self._threads) < min(THREADS, len(self._open)):
            thread = threading.Thread(target=self._run, name="parser", daemon=True)  # a shutdown waits for no decoder
            self._threads.append(thread)
            thread.start()

    def cancel(self, number: int) -> None:
        """Drop a request by its number."""
        self._open.discard(number)

    def take(self, wait_s: float) -> list[Parsed]:
        """Return the requests that were parsed since the last call; wait up to ``wait_s`` seconds for the first."""
        found: list[Parsed] = []
        try:
            while self._open:
                parsed = self._parsed.get(timeout=0 if found else wait_s)
                if parsed[0].number in self._open:
                    self._open.remove(parsed[0].number)
                    found.append(parsed)
        except Empty:
            pass
        return found

    def _run(self) -> None:
        while True:
            request = self._given.get()
            if request.number not in self._open:
                continue
            try:
                self._on_reading(request.number)
                self._parsed.put((request, self._parse(request)))
            except Exception as error:  # a defect must not end the thread
                self._parsed.put((request, error))
