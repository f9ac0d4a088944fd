"""The backend: Triton's requests go to a worker, and what comes of them goes into Triton's responses.

Runs in the process that Triton's Python backend starts. What it needs of Triton, the module that is there called
``triton_python_backend_utils``, it is given.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tightbeam.deploy.serving.messages import Request, Stats, WorkerSettings
from tightbeam.deploy.serving.metrics import Metrics
from tightbeam.deploy.serving.responses import Responder
from tightbeam.deploy.serving.watchdog import Server
from tightbeam.deploy.serving.worker_process import WorkerError, WorkerProcess, threads_per_worker

__all__ = ["BUNDLE", "ENGINE", "MAX_ROWS", "URL", "URL_VARIABLE", "Backend"]

BUNDLE = "bundle"
"""The bundle's folder, beside model.py."""
ENGINE, MAX_ROWS, URL = "engine", "max_rows", "url"
"""Parameters of the model's configuration."""
URL_VARIABLE = "TIGHTBEAM_TRITON_URL"
"""Where the server takes HTTP, if elsewhere than the configuration says."""
WARM_UP = '{"max_new_tokens": 2, "min_new_tokens": 0, "min_length": 0}'
"""Parameters of the request that warms a model up. Triton sends it without any, and a checkpoint's own may make
thousands of tokens."""
REGION = "triton_python_backend_shm_region"
"""What the name of the shared memory begins with that the backend's process is started with."""


class Backend:
    """One instance of a model. Raises Triton's own exception where the model cannot be loaded."""

    def __init__(self, arguments: dict[str, str], triton: Any) -> None:
        """``arguments``: what Triton gives ``initialize``. ``triton``: the module ``triton_python_backend_utils``."""
        config = json.loads(arguments["model_config"])
        self._triton = triton
        self._stream = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        try:
            self._worker = WorkerProcess(_settings(arguments, config, stream=self._stream))
        except WorkerError as error:
            raise triton.TritonModelException(str(error)) from None
        self._cold = bool(config.get("model_warmup"))
        labels = {"model": arguments["model_name"], "version": arguments["model_version"]}
        self._metrics = Metrics(triton, labels, int(config["max_batch_size"]))

    def execute(self, requests: Sequence[Any]) -> None:
        """Responder all of them, each with its own error if need be."""
        answers = [Responder(request, self._triton, stream=self._stream) for request in requests]
        stats = Stats()
        ran = False
        try:
            batch = [read for number, answer in enumerate(answers) if (read := answer.read(number)) is not None]
            if self._cold:  # Triton warms a model up before it sends any user's request
                self._cold, batch = False, [replace(request, parameters=WARM_UP) for request in batch]
            if not self._worker.alive:  # it ended while it had nothing to do, or could not be started again
                self._start_again()
            ran = True
            if batch:
                self._run(batch, answers, stats)
        except WorkerError as error:
            _fail(answers, f"{error}; send the request again")
        except Exception as error:  # the server goes on, whatever we did wrong
            traceback.print_exc()
            _fail(answers, f"{type(error).__name__}: {error}; this is a fault of Tightbeam")
        self._metrics.add(stats, [answer.outcome for answer in answers])
        if ran and not self._worker.alive:  # what waits in Triton's queue is not lost
            try:
                self._start_again()
            except WorkerError as error:  # it is tried again for the next requests
                print(f"tightbeam: the model cannot be loaded again: {error}", file=sys.stderr, flush=True)

    def _run(self, batch: Sequence[Request], answers: Sequence[Responder], stats: Stats) -> None:
        with closing(self._worker.run(batch, lambda: _gone(answers), stats)) as events:
            for event in events:
                answers[event.number].take(event)
        _fail(answers, "the request was not answered; this is a fault of Tightbeam")

    def _start_again(self) -> None:
        self._metrics.restarted()
        self._worker.start()

    def close(self) -> None:
        """End the worker."""
        self._worker.stop()


def _settings(arguments: dict[str, str], config: dict[str, Any], *, stream: bool) -> WorkerSettings:
    parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
    gpu = arguments["model_instance_kind"] == "GPU"
    instances = sum(group["count"] for group in config["instance_group"])
    return WorkerSettings(
        bundle=str(Path(arguments["model_repository"], arguments["model_version"], BUNDLE)),
        engine=parameters[ENGINE],
        threads=None if gpu else threads_per_worker(instances),
        device=int(arguments["model_instance_device_id"]) if gpu else None,
        max_rows=int(parameters[MAX_ROWS]),
        stream=stream,
        server=Server(
            pid=os.getppid(),
            url=os.environ.get(URL_VARIABLE, parameters[URL]),
            model=arguments["model_name"],
            region=_region(),
        ),
    )


def _region() -> str:
    """The name of the memory that this process shares with the server, which is among its arguments."""
    arguments = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    return next((argument for argument in arguments if argument.startswith(REGION)), "")


def _gone(answers: Sequence[Responder]) -> list[int]:
    return [number for number, answer in enumerate(answers) if answer.was_cancelled()]


def _fail(answers: Sequence[Responder], reason: str) -> None:
    for answer in answers:
        answer.fail(reason, own=False)
