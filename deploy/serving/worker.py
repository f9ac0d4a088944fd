"""The process that holds the model: it runs what a backend that Triton started tells it, and outlives that if need be.

python -m tightbeam.deploy.serving.worker DESCRIPTOR SETTINGS
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tightbeam.deploy.bundle.reader import BundleError
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.serving.batches import run_requests
from tightbeam.deploy.serving.messages import Batch, Cancel, Done, Failed, Ready, Shutdown, WorkerSettings
from tightbeam.deploy.serving.watchdog import reload_model

__all__ = ["main", "visible_device"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class _Worker:
    runner: Runner
    backend: Connection
    settings: WorkerSettings

    def serve(self) -> None:
        """Until the backend says goodbye. Raises EOFError, or OSError, where it ended without."""
        self.backend.send(Ready())
        while not isinstance(message := self.backend.recv(), Shutdown):
            if isinstance(message, Batch):  # a cancellation may come late
                self.backend.send(self._run(message))

    def _run(self, batch: Batch) -> Done | Failed:
        gone: set[int] = set()

        def cancelled() -> set[int]:
            while self.backend.poll(0):
                message = self.backend.recv()
                assert isinstance(message, Cancel)
                gone.add(message.number)
            return gone

        try:
            return Done(
                run_requests(
                    self.runner,
                    batch.requests,
                    max_rows=self.settings.max_rows,
                    stream=self.settings.stream,
                    send=self.backend.send,
                    cancelled=cancelled,
                )
            )
        except (EOFError, OSError):  # of the pipe
            raise
        except Exception as error:  # the server goes on, whatever we did wrong
            traceback.print_exc()
            return Failed(f"generation failed ({type(error).__name__}: {error}); this is a defect of Tightbeam")


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which says goodbye
    settings = WorkerSettings.model_validate_json(sys.argv[2])
    start = time.monotonic()
    if not _serve(Connection(int(sys.argv[1])), settings):
        reload_model(settings.server, time.monotonic() - start)  # the model's memory is free by now


def visible_device(number: int, visible: str) -> str:
    """The GPU that the server calls ``number``, among those that it sees (CUDA_VISIBLE_DEVICES; all where empty)."""
    devices = visible.split(",") if visible else []
    return devices[number].strip() if number < len(devices) else str(number)


def _serve(backend: Connection, settings: WorkerSettings) -> bool:
    """Whether it ended as it should, rather than by the backend's death."""
    if settings.device is not None:
        os.environ[VISIBLE] = visible_device(settings.device, os.environ.get(VISIBLE, ""))
    try:
        try:
            runner = Runner.load(settings.bundle, engine=settings.engine, threads=settings.threads)
        except (BundleError, InputError) as error:
            backend.send(Failed(str(error)))
        else:
            _Worker(runner, backend, settings).serve()
    except (EOFError, OSError):
        return False
    return True


if __name__ == "__main__":
    main()
