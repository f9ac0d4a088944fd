"""The worker as a child process of the backend: start, messages, stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from socket import socketpair

from tightbeam.deploy.runtimes.process.cores import allowed_cores
from tightbeam.deploy.runtimes.process.environment import with_huge_pages
from tightbeam.deploy.serving.protocol.messages import Cancel, Failed, Ready, Report, Requests, Shutdown, WorkerSettings

__all__ = ["WorkerError", "WorkerProcess"]

SHUTDOWN_SECONDS = 5.0
"""Time for the worker to exit before it is killed, even if it does not read, or still loads the model."""
MOST_VERIFIED = 2000
"""The most fingerprints of files that a worker gets, among its arguments: Linux allows 128 KiB for one argument."""


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
        self._stopping = False
        self._changing = threading.Lock()  # held while a process is started, or the last one is named
        self.start()

    def start(self) -> None:
        """Start the process, and wait until the model is loaded. Raises WorkerError if it cannot be loaded."""
        if not hasattr(os, "fork"):
            raise WorkerError("serving needs Linux or macOS, and this is Windows; use WSL, run-model or Runner")
        ours, theirs = socketpair()
        with ours, theirs, self._changing:
            if self._stopping:
                raise WorkerError("the process that generates is being stopped")
            command = [sys.executable, "-m", "tightbeam.deploy.serving.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, self._settings.model_dump_json()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=with_huge_pages(os.environ),
            )
            descriptor = ours.detach()
        self._pipe = Connection(descriptor)
        first = self._receive()
        if not isinstance(first, Ready):
            self._process.wait()
            raise WorkerError(first.message if isinstance(first, Failed) else f"unexpected {first!r}")
        self._settings = self._settings.model_copy(update={"verified": first.verified[:MOST_VERIFIED]})

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Context in which the process has `SHUTDOWN_SECONDS` to end before it is killed; it is not started again.

        The kill releases threads that wait for the process to read a message, or to start.
        """
        with self._changing:
            self._stopping = True
        killer = threading.Timer(SHUTDOWN_SECONDS, self._process.kill)
        killer.start()
        try:
            yield
        finally:
            killer.cancel()

    def kill(self) -> None:
        """Kill the process, which `receive` then reports."""
        self._process.kill()

    def stop(self) -> None:
        """Stop the process, and wait until it has ended. It takes `SHUTDOWN_SECONDS` at most."""
        with self.stopping():
            with suppress(WorkerError):
                self.send(Shutdown())
            self._process.wait()
        self._pipe.close()

    def send(self, message: Requests | Cancel | Shutdown) -> None:
        """Send a message, and wait if the worker does not read. Raises WorkerError if the process has ended."""
        try:
            self._pipe.send(message)
        except OSError:
            raise self._lost() from None

    def receive(self) -> Report:
        """Wait for a message. Raises WorkerError if the process has ended."""
        message = self._receive()
        assert isinstance(message, Report)
        return message

    def _receive(self) -> Report | Failed | Ready:
        try:
            message: Report | Failed | Ready = self._pipe.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        return message

    def _lost(self) -> WorkerError:
        """Return the error for a process that has ended."""
        try:
            code = self._process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
        hint = "; the kernel does that where memory runs out" if code == -signal.SIGKILL else ""
        return WorkerError(f"the process that generates {how}{hint}")


def _signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name (a real-time signal)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def threads_per_worker(instances: int) -> int | None:
    """Return the threads for each of ``instances`` workers; None for all cores."""
    return None if instances <= 1 else max(1, allowed_cores() // instances)
