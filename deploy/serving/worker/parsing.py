"""Threads that parse requests and read parts of files. Decoding may take seconds, and no step should wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["THREADS", "Job", "ParsingThreads"]

THREADS = 2
"""Number of threads: one goes on with short recordings while the other reads a long one."""


@dataclass(eq=False)
class Job:
    """Work of a request for a thread.

    Attributes
    ----------
    number : int
        The request's number.
    work : function
        The work, which a thread does.
    then : function of the outcome
        What to do with the outcome, in the thread of the caller. An exception is the outcome of work that raised it.
    outcome : object
        What the work returned or raised, once it is done.
    """

    number: int
    work: Callable[[], Any]
    then: Callable[[Any], None]
    outcome: Any = field(default=None)


class ParsingThreads:
    """Does the jobs of requests while others run. All methods are for one thread.

    Parameters
    ----------
    on_reading
        Function of a request's number, called in the job's thread before its work begins.
    """

    def __init__(self, on_reading: Callable[[int], None] = lambda number: None) -> None:
        self._on_reading = on_reading
        self._given: SimpleQueue[Job | None] = SimpleQueue()
        self._done: SimpleQueue[Job] = SimpleQueue()
        self._open: set[Job] = set()
        self._threads: list[threading.Thread] = []
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._put = 0  # jobs that were given to the threads, less those that ended

    @property
    def active(self) -> bool:
        """True if a job has not been taken yet."""
        return bool(self._open)

    @property
    def working(self) -> bool:
        """True while a thread has a job, be it one that nobody takes any more."""
        while not self._ended.empty():
            self._ended.get()
            self._put -= 1
        return self._put > 0

    def put(self, job: Job) -> None:
        """Queue a job for the threads. Raises OSError if the system cannot start the first one."""
        if len(self._threads) < min(THREADS, len(self._open) + 1):
            thread = threading.Thread(target=self._run, name="parser", daemon=True)  # a shutdown waits for no decoder
            try:
                thread.start()
            except RuntimeError as error:
                if not self._threads:
                    raise OSError(str(error)) from None
            else:
                self._threads.append(thread)
        self._open.add(job)
        self._put += 1
        self._given.put(job)

    def close(self) -> None:
        """End the threads once they have done what they do; further jobs are not done."""
        self._open.clear()
        for _ in self._threads:
            self._given.put(None)

    def cancel(self, number: int) -> None:
        """Drop the jobs of a request."""
        self._open = {job for job in self._open if job.number != number}

    def take(self, wait_s: float) -> list[Job]:
        """Return the jobs that were done since the last call; wait up to ``wait_s`` seconds for the first."""
        found: list[Job] = []
        try:
            while self._open:
                job = self._done.get(timeout=0 if found else wait_s)
                if job in self._open:
                    self._open.remove(job)
                    found.append(job)
        except Empty:
            pass
        return found

    def _run(self) -> None:
        while (job := self._given.get()) is not None:
            self._do(job)
            del job  # else it would stay in memory until the next one
            self._ended.put(None)

    def _do(self, job: Job) -> None:
        if job not in self._open:
            return
        try:
            self._on_reading(job.number)
            job.outcome = job.work()
        except Exception as error:  # a defect must not end the thread
            job.outcome = error
        if job in self._open:  # else its outcome would stay in memory until another job is taken
            self._done.put(job)
