"""The worker as a child process of the backend: start, run, stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from socket import socketpair

from tightbeam.deploy.cores import allowed_cores
from tightbeam.deploy.huge_pages import with_huge_pages
from tightbeam.deploy.serving.messages import (
    Batch,
    Cancel,
    Done,
    Event,
    Failed,
    Ready,
    Request,
    Shutdown,
    Stats,
    WorkerSettings,
)

__all__ = ["WorkerError", "WorkerProcess"]

SHUTDOWN_SECONDS = 5.0
"""Time for the worker to exit before it is killed."""
CANCEL_POLL_SECONDS = 0.005
"""Least time between two checks for cancelled requests."""
CANCEL_POLL_SHARE = 0.02
"""Largest share of the time that these checks may take."""


class WorkerError(RuntimeError):
    """Failure of the worker: it cannot start, or has ended."""


class WorkerProcess:
    """A worker. It is started at once, and restarted by `start`.

    Parameters
    ----------
    settings
        The worker's settings.

    Raises
    ------
    WorkerError
        The model cannot be loaded.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.start()

    def start(self) -> None:
        """Start the process, and wait until the model is loaded. Raises WorkerError where it cannot be."""
        ours, theirs = socketpair()
        with theirs:
            command = [sys.executable, "-m", "tightbeam.deploy.serving.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, self._settings.model_dump_json()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=with_huge_pages(os.environ),
            )
        self._pipe = Connection(ours.detach())
        first = self._receive()
        if not isinstance(first, Ready):
            self._process.wait()
            raise WorkerError(first.message if isinstance(first, Failed) else f"unexpected {first!r}")

    def run(
        self, requests: Sequence[Request], poll_cancelled: Callable[[], Sequence[int]], stats: Stats
    ) -> Generator[Event, None, None]:
        """Run requests together.

        If the caller closes the generator before its end, the worker is killed: its next batch would be mixed with the
        rest of this one.

        Parameters
        ----------
        requests
            The requests.
        poll_cancelled
            Function that returns the numbers of requests cancelled since its last call; called every few milliseconds.
        stats
            Receives the work that was done, at the end.

        Yields
        ------
        Event
            The events of the requests, as they come.

        Raises
        ------
        WorkerError
            The worker ended or failed.
        """
        over = False
        try:
            for message in self._messages(requests, poll_cancelled):
                over = isinstance(message, Done | Failed)
                if isinstance(message, Done):
                    stats.__dict__.update(message.stats.__dict__)
                elif isinstance(message, Failed):
                    raise WorkerError(message.message)
                else:
                    yield message
        finally:
            if not over:
                self._process.kill()
                self._process.wait()

    def _messages(
        self, requests: Sequence[Request], poll_cancelled: Callable[[], Sequence[int]]
    ) -> Iterator[Event | Done | Failed]:
        """Send a batch and yield the worker's messages; `Done` or `Failed` comes last."""
        self._send(Batch(tuple(requests)))
        next_check = 0.0
        while True:
            if self._pipe.poll(max(0.0, next_check - time.monotonic())):
                message = self._receive()
                assert not isinstance(message, Ready)
                yield message
                if isinstance(message, Done | Failed):
                    return
            if time.monotonic() >= next_check:
                start = time.monotonic()
                for number in poll_cancelled():
                    self._send(Cancel(number))
                end = time.monotonic()
                next_check = end + max(CANCEL_POLL_SECONDS, (end - start) / CANCEL_POLL_SHARE)

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop the process, and wait until it has ended."""
        with suppress(WorkerError):
            self._send(Shutdown())
        try:
            self._process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe.close()

    def _send(self, message: Batch | Shutdown | Cancel) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._lost() from None

    def _receive(self) -> Event | Done | Failed | Ready:
        try:
            message: Event | Done | Failed | Ready = self._pipe.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        return message

    def _lost(self) -> WorkerError:
        """The error for a process that has ended."""
        try:
            code = self._process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
        hint = "; the kernel does that where memory runs out" if code == -signal.SIGKILL else ""
        return WorkerError(f"the process that generates {how}{hint}")


def _signal_name(number: int) -> str:
    """The name of a signal, or its number where it has none (a real-time signal)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def threads_per_worker(instances: int) -> int | None:
    """Threads for each of ``instances`` workers; None for all cores."""
    return None if instances <= 1 else max(1, allowed_cores() // instances)
