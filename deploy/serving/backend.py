"""The backend: sends Triton's requests to a worker, and the worker's events as Triton's responses.

It runs in the process that Triton's Python backend starts, and takes Triton's module ``triton_python_backend_utils`` as
an argument.
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
"""Parameters in the model's configuration."""
URL_VARIABLE = "TIGHTBEAM_TRITON_URL"
"""Environment variable with the server's HTTP address, in place of the one in the configuration."""
WARM_UP_PARAMETERS = '{"max_new_tokens": 2, "min_new_tokens": 0, "min_length": 0}'
"""Parameters of the warm-up request. Triton sends it without any, and a checkpoint's defaults may generate thousands of
tokens."""
REGION = "triton_python_backend_shm_region"
"""Prefix of the name of the shared memory, which is among the arguments of the backend's process."""


class Backend:
    """One instance of a model.

    Parameters
    ----------
    arguments
        Triton's arguments of ``initialize``.
    triton
        The module ``triton_python_backend_utils``.

    Raises
    ------
    TritonModelException
        Triton's own class; the model cannot be loaded.
    """

    def __init__(self, arguments: dict[str, str], triton: Any) -> None:
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
        """Run requests together, and send the responses of each, errors included."""
        responders = [Responder(request, self._triton, stream=self._stream) for request in requests]
        stats = Stats()
        ran = False
        try:
            batch = [
                read for number, responder in enumerate(responders) if (read := responder.read(number)) is not None
            ]
            if self._cold:  # the warm-up request comes before any client's
                self._cold, batch = False, [replace(request, parameters=WARM_UP_PARAMETERS) for request in batch]
            if not self._worker.alive:  # it ended while idle, or could not be restarted
                self._restart()
            ran = True
            if batch:
                self._run(batch, responders, stats)
        except WorkerError as error:
            _fail(responders, f"{error}; send the request again")
        except Exception as error:  # a defect must not end the server
            traceback.print_exc()
            _fail(responders, f"{type(error).__name__}: {error}; this is a defect of Tightbeam")
        self._metrics.add(stats, [responder.outcome for responder in responders])
        if ran and not self._worker.alive:  # the requests in Triton's queue can still be run
            try:
                self._restart()
            except WorkerError as error:  # the next requests try it again
                print(f"tightbeam: the model cannot be loaded again: {error}", file=sys.stderr, flush=True)

    def _run(self, batch: Sequence[Request], responders: Sequence[Responder], stats: Stats) -> None:
        with closing(self._worker.run(batch, lambda: _cancelled(responders), stats)) as events:
            for event in events:
                responders[event.number].add(event)
        _fail(responders, "the request got no response; this is a defect of Tightbeam")

    def _restart(self) -> None:
        self._metrics.restarted()
        self._worker.start()

    def close(self) -> None:
        """Stop the worker."""
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
    """The name of the memory that this process shares with the server; empty where its arguments lack one."""
    arguments = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    return next((argument for argument in arguments if argument.startswith(REGION)), "")


def _cancelled(responders: Sequence[Responder]) -> list[int]:
    return [number for number, responder in enumerate(responders) if responder.was_cancelled()]


def _fail(responders: Sequence[Responder], reason: str) -> None:
    for responder in responders:
        responder.fail(reason, client_error=False)
