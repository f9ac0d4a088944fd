"""The backend: it reads Triton's requests, sends them to the worker that runs them, and returns before they are run.

It runs in the process that Triton's Python backend starts, and takes Triton's module ``triton_python_backend_utils`` as
an argument. A response is sent through its request's response sender, from another thread than Triton's. So requests
may come while others run, and each gets its own response.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tightbeam.deploy.serving.backend.metrics import triton_metrics
from tightbeam.deploy.serving.backend.responses import TritonResponder
from tightbeam.deploy.serving.dispatch.dispatcher import Dispatcher
from tightbeam.deploy.serving.dispatch.worker_process import WorkerError, WorkerProcess, threads_per_worker
from tightbeam.deploy.serving.protocol.messages import Request, Server, WorkerSettings
from tightbeam.deploy.serving.protocol.parameters import (
    BUNDLE,
    DEADLINE,
    ENGINE,
    MAX_REQUEST_ROWS,
    MAX_ROWS,
    URL,
    URL_VARIABLE,
)
from tightbeam.deploy.serving.protocol.server_end import end_with_server

__all__ = ["Backend"]

WARM_UP_PARAMETERS = '{"max_new_tokens": 2, "min_new_tokens": 0, "min_length": 0}'
"""Parameters of the warm-up request. Triton sends it without any, and a checkpoint's defaults may generate thousands of
tokens."""
DEFAULT_DEADLINE_S = 3600
"""The deadline of a model whose configuration has none, from an earlier version."""
REGION = "triton_python_backend_shm_region"
"""Prefix of the shared memory's name, which is one of the arguments of the backend's process."""


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
        The model cannot be loaded. This is Triton's own class.
    """

    def __init__(self, arguments: dict[str, str], triton: Any) -> None:
        config = json.loads(arguments["model_config"])
        self._triton, self._folder = triton, arguments["model_repository"]
        self._stream = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        settings = _settings(arguments, config)
        if settings.server is not None:
            end_with_server(settings.server)
        try:
            worker = WorkerProcess(settings)
        except WorkerError as error:
            raise triton.TritonModelException(str(error)) from None
        self._cold = bool(config.get("model_warmup"))
        labels = {"model": arguments["model_name"], "version": arguments["model_version"]}
        most = max(1, int(config["max_batch_size"]))
        deadline_s = float(config["parameters"].get(DEADLINE, {}).get("string_value", DEFAULT_DEADLINE_S))
        self._dispatcher = Dispatcher(worker, most, triton_metrics(triton, labels, most).add, deadline_s)

    def execute(self, requests: Sequence[Any]) -> None:
        """Send requests to the worker. Waits if a whole batch of requests waits there already."""
        responders = [
            TritonResponder(request, self._triton, stream=self._stream, folder=self._folder) for request in requests
        ]
        self._dispatcher.submit(responders, self._warm_up if self._cold else lambda request: request)
        self._cold = False  # the warm-up request comes before any client's

    @staticmethod
    def _warm_up(request: Request) -> Request:
        return replace(request, parameters=WARM_UP_PARAMETERS)

    def close(self) -> None:
        """Stop the worker."""
        self._dispatcher.close()


def _settings(arguments: dict[str, str], config: dict[str, Any]) -> WorkerSettings:
    parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
    gpu = arguments["model_instance_kind"] == "GPU"
    instances = sum(group["count"] for group in config["instance_group"])
    return WorkerSettings(
        bundle=str(Path(arguments["model_repository"], arguments["model_version"], BUNDLE)),
        engine=parameters[ENGINE],
        threads=None if gpu else threads_per_worker(instances),
        device=int(arguments["model_instance_device_id"]) if gpu else None,
        max_rows=int(parameters[MAX_ROWS]),
        max_request_rows=int(parameters.get(MAX_REQUEST_ROWS, config["max_batch_size"])),
        server=Server(
            pid=os.getppid(),
            url=os.environ.get(URL_VARIABLE, parameters[URL]),
            model=arguments["model_name"],
            region=_region(),
        ),
    )


def _region() -> str:
    """Return the name of the memory that this process shares with the server; empty if its arguments lack one."""
    arguments = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    return next((argument for argument in arguments if argument.startswith(REGION)), "")
