"""The worker: the process that holds the model, and runs the requests of the backend that started it.

If the backend is killed, the worker has the model reloaded (watchdog.py), then exits.

python -m tightbeam.deploy.serving.worker DESCRIPTOR SETTINGS
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.runtimes.process.freed_memory import return_large_blocks
from tightbeam.deploy.serving.protocol.messages import Cancel, Failed, Ready, Report, Requests, Shutdown, WorkerSettings
from tightbeam.deploy.serving.worker.running import RunningRequests
from tightbeam.deploy.serving.worker.watchdog import reload_model, watch_server

__all__ = ["main", "visible_device"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
READ_SECONDS = 0.02
"""Longest time for reading requests between two turns; running samples wait meanwhile."""
IDLE_SECONDS = 1.0
"""After this time without a request the memory of the last ones is given back to the system."""


class BackendEndedError(Exception):
    """The backend has ended without `Shutdown`."""


def main() -> None:
    """Entry point."""
    return_large_blocks()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the server sends Shutdown
    settings = WorkerSettings.model_validate_json(sys.argv[2])
    if settings.server is not None:
        watch_server(settings.server)
    start = time.monotonic()
    if not _serve(Connection(int(sys.argv[1])), settings) and settings.server is not None:
        reload_model(settings.server, time.monotonic() - start)  # after _serve, so that the model's memory is free


def visible_device(number: int, visible: str) -> str:
    """Return the GPU's entry for CUDA_VISIBLE_DEVICES.

    Parameters
    ----------
    number
        The server's number of the GPU.
    visible
        The server's own CUDA_VISIBLE_DEVICES; empty for all GPUs.
    """
    devices = visible.split(",") if visible else []
    return devices[number].strip() if number < len(devices) else str(number)


def _serve(backend: Connection, settings: WorkerSettings) -> bool:
    """Load the model and run the backend's requests. Returns False if the backend ended without `Shutdown`."""
    if settings.device is not None:
        os.environ[VISIBLE] = visible_device(settings.device, os.environ.get(VISIBLE, ""))
    try:
        try:
            verified = VerifiedFiles(settings.verified)
            model = Model.load(settings.bundle, engine=settings.engine, threads=settings.threads, verify=verified)
            model.bundle.wait_for_weights()
        except (BundleError, InputError) as error:
            with _pipe():
                backend.send(Failed(str(error)))
        else:
            with _pipe():
                backend.send(Ready(verified.fingerprints))
            _run(model, backend, settings)
    except BackendEndedError:
        return False
    return True


def _run(model: Model, backend: Connection, settings: WorkerSettings) -> None:
    """Run requests until `Shutdown`. Raises BackendEndedError if the backend ends without one."""

    def send(report: Report) -> None:
        with _pipe():
            backend.send(report)

    running = RunningRequests(
        model,
        max_rows=settings.max_rows,
        max_request_rows=settings.max_request_rows,
        send=send,
        files=settings.files,
    )
    while True:
        end = time.monotonic() + READ_SECONDS
        while not running.active or time.monotonic() < end:
            with _pipe():
                waits = not running.active or backend.poll(0)
            if not waits:
                break
            if not running.active:
                _release_when_idle(backend, running)
            if _take(_received(backend), running):
                running.close()
                return
            if not running.active:  # it was refused or cancelled
                running.report()
        running.turn()


def _release_when_idle(backend: Connection, running: RunningRequests) -> None:
    """Give the memory of the last requests back if no message comes for some time, and that of cancelled ones which a
    thread still reads once it has ended."""
    reading = True
    while reading:
        with _pipe():
            if backend.poll(IDLE_SECONDS):
                return
        reading = running.reading
        running.release_buffers()


def _received(backend: Connection) -> Requests | Cancel | Shutdown:
    with _pipe():
        message: Requests | Cancel | Shutdown = backend.recv()
    return message


def _take(message: Requests | Cancel | Shutdown, running: RunningRequests) -> bool:
    """Handle a message, which no variable keeps in memory until the next one. Returns True for `Shutdown`."""
    if isinstance(message, Cancel):
        running.cancel(message.number)
    elif isinstance(message, Requests):
        for request in message.requests:
            running.add(request)
    return isinstance(message, Shutdown)


@contextmanager
def _pipe() -> Iterator[None]:
    """Raise faults of the pipe as BackendEndedError. Other faults, as of a full disk, are not the backend's end."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise BackendEndedError from error


if __name__ == "__main__":
    main()
