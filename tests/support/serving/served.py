"""A real Triton server with models of the tests, and clients of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_client
import tritonclient.http.aio as http_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from support.inputs import run_lines
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.serving.repository.config import ServingSettings
from tightbeam.deploy.serving.repository.models import write_model
from tightbeam.deploy.serving.server.local_server import LocalServer
from tightbeam.deploy.serving.server.triton_server import ServerError, find_server

SHARED_MEMORY = Path("/dev/shm")


def start(repository: Path, log: Path) -> LocalServer:
    """A server of a model repository; skips where there is none for this machine."""
    skip_without_server()
    return LocalServer(repository, log=log)


def skip_without_server() -> None:
    try:
        find_server()
    except ServerError as error:
        pytest.skip(str(error))


def serve(bundle: Path, repository: Path, name: str, **settings: Any) -> None:
    """Write a model that serves a bundle."""
    again = {key: settings.pop(key) for key in ("next_version", "force") if key in settings}
    write_model(Bundle.load(bundle), repository, ServingSettings(name=name, **settings), **again)


def inputs_of(module: ModuleType, arrays: dict[str, Any]) -> list[Any]:
    found = []
    for name, array in arrays.items():
        array = np.asarray(array)
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        found.append(tensor)
    return found


def texts(*values: str | bytes) -> np.ndarray:
    return np.array([[value.encode() if isinstance(value, str) else value] for value in values], np.object_)


class Response(dict[str, Any]):
    """Outputs by name, or ``error``: the server's message."""

    @classmethod
    def of(cls, result: Any, names: tuple[str, ...]) -> Response:
        return cls({name: result.as_numpy(name) for name in names})

    @property
    def texts(self) -> list[list[str]]:
        return [[text.decode() for text in row] for row in self["TEXT"]]

    @property
    def ids(self) -> list[list[list[int]]]:
        """Token ids by row and sequence, without padding."""
        return [
            [ids[:length].tolist() for ids, length in zip(row, lengths, strict=True)]
            for row, lengths in zip(self["OUTPUT_IDS"], self["OUTPUT_LENGTHS"], strict=True)
        ]


OUTPUTS = ("TEXT", "SCORES", "OUTPUT_IDS", "OUTPUT_LENGTHS")
OF_TOKENS = ("TOKEN_SCORES", "ALTERNATIVE_IDS", "ALTERNATIVE_SCORES")
"""Outputs of responses whose requests ask for them."""
Send = Callable[..., Coroutine[Any, Any, Response]]


async def response_to(
    client: Any, model: str, arrays: dict[str, Any], names: tuple[str, ...], **settings: Any
) -> Response:
    """The response to one request, over the protocol of the client."""
    module = http_client if isinstance(client, http_client.InferenceServerClient) else grpc_client
    try:
        return Response.of(await client.infer(model, inputs_of(module, arrays), parameters=settings or None), names)
    except InferenceServerException as error:
        return Response(error=error.message(), status=error.status())


def run(server: Any, work: Callable[[Send, Send], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``work(http, grpc)``; its arguments send requests: ``await http(model, {"TEXT": ...}, num_beams=4)``."""

    async def both() -> Any:
        http = http_client.InferenceServerClient(server.http, conn_limit=256, conn_timeout=120)
        grpc = grpc_client.InferenceServerClient(server.grpc)

        def sender(client: Any) -> Send:
            async def one(
                model: str, arrays: dict[str, Any], names: tuple[str, ...] = OUTPUTS, **given: Any
            ) -> Response:
                return await response_to(client, model, arrays, names, **given)

            return one

        try:
            return await work(sender(http), sender(grpc))
        finally:
            await http.close()
            await grpc.close()

    return asyncio.run(both())


def metrics(server: Any, model: str) -> dict[str, float]:
    """The metrics of one model, by name."""
    found: dict[str, float] = server.counters(model)
    return found


def processes(server: Any, what: str, model: str = "") -> list[int]:
    """Ids of the server's child processes: ``what`` is "stub" or "worker"."""
    marks = {"stub": "triton_python_backend_stub", "worker": "tightbeam.deploy.serving.worker"}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            group = os.getpgid(int(folder.name))
        except (OSError, ProcessLookupError):
            continue
        if marks[what] in command and f"/{model}" in command and group == server.process.pid:
            found.append(int(folder.name))
    return found


def running(*pids: int) -> list[int]:
    """The processes that run, of ``pids``: one that has ended stays in /proc until its parent has asked for its end."""
    found = []
    for pid in pids:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            found += [pid] if state not in "ZX" else []
    return found


def region(stub: int) -> Path:
    """The file of the memory that a stub shares with its server."""
    return SHARED_MEMORY / Path(f"/proc/{stub}/cmdline").read_bytes().decode().split("\0")[2]


def until(true: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until a function returns something true, and return it."""
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def expected(runner: Runner, text: str, **settings: Any) -> tuple[list[list[int]], list[str]]:
    """Sequences without padding, and texts, from the runner without a server."""
    (result,) = run_lines(runner, [text.encode()], **settings)
    assert result.error is None and result.texts is not None
    return result.sequences, result.texts
