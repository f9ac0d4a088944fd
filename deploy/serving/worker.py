"""The worker: the process that holds the model, and runs the batches of the backend that started it.

If the backend is killed, the worker has the model reloaded (watchdog.py), then exits.

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

from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.serving.batches import run_requests
from tightbeam.deploy.serving.messages import Batch, Cancel, Done, Failed, Ready, Shutdown, WorkerSettings
from tightbeam.deploy.serving.watchdog import reload_model

__all__ = ["main", "visible_device"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class _Worker:
    """The loop over a backend's messages."""

    runner: Runner
    backend: Connection
    settings: WorkerSettings

    def serve(self) -> None:
        """Run batches until `Shutdown`. Raises EOFError or OSError where the backend ends without one."""
        self.backend.send(Ready())
        while not isinstance(message := self.backend.recv(), Shutdown):
            if isinstance(message, Batch):  # a Cancel here came after the end of its batch
                self.backend.send(self._run(message))

    def _run(self, batch: Batch) -> Done | Failed:
        numbers: set[int] = set()

        def cancelled() -> set[int]:
            while self.backend.poll(0):
                message = self.backend.recv()
                assert isinstance(message, Cancel)
                numbers.add(message.number)
            return numbers

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
        except (EOFError, OSError):  # from the pipe
            raise
        except Exception as error:  # a defect must not end the worker
            traceback.print_exc()
            return Failed(f"generation failed ({type(error).__name__}: {error}); this is a defect of Tightbeam")


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the server sends Shutdown
    settings = WorkerSettings.model_validate_json(sys.argv[2])
    start = time.monotonic()
    if not _serve(Connection(int(sys.argv[1])), settings):
        reload_model(settings.server, time.monotonic() - start)  # after _serve, so that the model's memory is free


def visible_device(number: int, visible: str) -> str:
    """The GPU's entry for CUDA_VISIBLE_DEVICES.

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
    """Load the model and run the backend's batches. Returns False if the backend ended without `Shutdown`."""
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
