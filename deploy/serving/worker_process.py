"""The worker as the backend sees it: started, spoken to, and started again."""

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
CANCEL_POLL_SECONDS = 0.005
"""How often it is asked who cancelled, at most."""
CANCEL_POLL_SHARE = 0.02
"""Of the time, that asking may take."""


class WorkerError(RuntimeError):
    """The worker cannot start, or ended."""


class WorkerProcess:
    """Raises WorkerError, with the reason, where the model cannot be loaded."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.start()

    def start(self) -> None:
        """Start it, and wait until the model is loaded."""
        ours, theirs = socketpair()
        with theirs:
            command = [sys.executable, "-m", "tightbeam.deploy.serving.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, self._settings.model_dump_json()], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._pipe = Connection(ours.detach())
        first = self._receive()
        if not isinstance(first, Ready):
            self._process.wait()
            raise WorkerError(first.message if isinstance(first, Failed) else f"unexpected {first!r}")

    def run(
        self, requests: Sequence[Request], gone: Callable[[], Sequence[int]], stats: Stats
    ) -> Generator[Event, None, None]:
        """Run requests together; yields what comes of them, as it comes.

        ``gone``: asked now and then; the numbers of requests that were cancelled since. ``stats``: what was done is
        written there in the end. Raises WorkerError where the worker ends, or fails; nothing more comes then. Whoever
        stops listening before the end ends the worker: the next batch would receive its messages.
        """
        over = False
        try:
            for message in self._listen(requests, gone):
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

    def _listen(
        self, requests: Sequence[Request], gone: Callable[[], Sequence[int]]
    ) -> Iterator[Event | Done | Failed]:
        """All that the worker says of a batch; `Done` or `Failed` comes last."""
        self._send(Batch(tuple(requests)))
        next_look = 0.0
        while True:
            if self._pipe.poll(max(0.0, next_look - time.monotonic())):
                message = self._receive()
                assert not isinstance(message, Ready)
                yield message
                if isinstance(message, Done | Failed):
                    return
            if time.monotonic() >= next_look:
                start = time.monotonic()
                for number in gone():
                    self._send(Cancel(number))
                end = time.monotonic()
                next_look = end + max(CANCEL_POLL_SECONDS, (end - start) / CANCEL_POLL_SHARE)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Say goodbye, and wait until it is gone."""
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
        """What is known of its end."""
        try:
            code = self._process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
        hint = "; the kernel does that where memory runs out" if code == -signal.SIGKILL else ""
        return WorkerError(f"the process that generates {how}{hint}")


def _signal_name(number: int) -> str:
    """Of a real-time signal, which has none, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def threads_per_worker(instances: int) -> int | None:
    """Threads for each of so many workers; None for all cores."""
    return None if instances <= 1 else max(1, len(os.sched_getaffinity(0)) // instances)
