"""Closed-loop clients: each keeps one request in flight; with the counters of the server meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.serving.server.local_server import LocalServer

__all__ = ["ClosedLoop", "Load", "memory_bytes"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
COUNTERS = {
    "steps": "tightbeam_steps_total",
    "sample_steps": "tightbeam_sample_steps_total",
    "requests": "nv_inference_request_success",
    "queue_us": "nv_inference_queue_duration_us",
}


@dataclass(frozen=True)
class Response:
    """The response to one source: its outputs, and when it was sent and received, in seconds."""

    source: int
    client: int
    sent: float
    came: float
    outputs: dict[str, Array]


@dataclass
class Load:
    """Responses of all clients and counters of the server, in so many seconds after the warm-up."""

    clients: int
    seconds: float
    responses: list[Response] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    """after a third of the time, and in the end"""
    counted: dict[str, float] = field(default_factory=dict)

    @property
    def requests_per_second(self) -> float:
        """Responses a second, summed over clients: each between its first response and its last, so that the moment of
        the time limit within a batch does not matter. All responses by seconds where a client has fewer than two.
        """
        times = [
            [response.came for response in self.responses if response.client == client]
            for client in range(self.clients)
        ]
        if min(map(len, times)) < 2:
            return len(self.responses) / self.seconds
        return sum((len(came) - 1) / (max(came) - min(came)) for came in times)

    def latency_ms(self, percent: float) -> float:
        """Latency percentile, in milliseconds."""
        latencies = [response.came - response.sent for response in self.responses]
        return 1e3 * float(np.percentile(latencies, percent)) if latencies else float("nan")

    @property
    def batch_fill(self) -> float:
        """Samples a step of a tightbeam model; 1 of another."""
        return self.counted["sample_steps"] / self.counted["steps"] if self.counted["steps"] else 1.0

    @property
    def queue_ms(self) -> float:
        """Average milliseconds of a request in Triton's queue."""
        return 1e-3 * self.counted["queue_us"] / max(1.0, self.counted["requests"])


class ClosedLoop:
    """Clients that send the next request as soon as the response to the last one is there.

    ``sources``: token ids int64 [1, N]. ``outputs``: the requested ones. ``parameters``: of every request.
    """

    def __init__(
        self,
        server: LocalServer,
        model: str,
        sources: Sequence[Array],
        outputs: Sequence[str],
        parameters: Mapping[str, Any],
        *,
        clients: int,
        seconds: float,
    ) -> None:
        self._server = server
        self._model = model
        self._inputs = [triton.InferInput("INPUT_IDS", list(ids.shape), "INT64") for ids in sources]
        for tensor, ids in zip(self._inputs, sources, strict=True):
            tensor.set_data_from_numpy(ids)
        self._outputs = outputs
        self._parameters = parameters
        self._load = Load(clients, seconds)
        self._open = False

    def run(self, warm_up_seconds: float) -> Load:
        """Run the clients; requests in flight at the end are cancelled, and the model is idle on return."""
        return asyncio.run(self._run(warm_up_seconds))

    async def _run(self, warm_up_seconds: float) -> Load:
        load = self._load
        async with triton.InferenceServerClient(self._server.grpc) as client:
            asking = [asyncio.create_task(self._ask(client, number)) for number in range(load.clients)]
            await asyncio.sleep(warm_up_seconds)
            before = await asyncio.to_thread(self._counters)
            self._open = True
            for part in (1 / 3, 2 / 3):
                await asyncio.sleep(part * load.seconds)
                load.memory_bytes.append(await asyncio.to_thread(memory_bytes, self._server, self._model))
            self._open = False
            after = await asyncio.to_thread(self._counters)
            load.counted = {name: after[name] - before[name] for name in before}
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            with suppress(triton.InferenceServerException):
                await self._infer(client, 0)  # comes through when what runs still is over
        return load

    async def _ask(self, client: Any, number: int) -> None:
        source = number
        while True:
            source %= len(self._inputs)
            sent = time.perf_counter()
            try:
                response = await self._infer(client, source)
            except Exception as error:
                if self._open:
                    self._load.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)  # no thousand requests a second to a server that is gone
            else:
                if self._open:
                    arrays = {name: response.as_numpy(name) for name in self._outputs}
                    self._load.responses.append(Response(source, number, sent, time.perf_counter(), arrays))
            source += self._load.clients

    async def _infer(self, client: Any, source: int) -> Any:
        wanted = [triton.InferRequestedOutput(name) for name in self._outputs]
        return await client.infer(self._model, [self._inputs[source]], outputs=wanted, parameters=self._parameters)

    def _counters(self) -> dict[str, float]:
        found = self._server.counters(self._model)
        return {name: found.get(metric, 0.0) for name, metric in COUNTERS.items()}


def memory_bytes(server: LocalServer, model: str) -> int:
    """Resident memory of the server's own process, and of the processes that run ``model``."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    roots = {server.process.pid}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        pid = int(folder.name)
        parents[pid], pages[pid] = int(status[1]), int(status[21])
        if parents[pid] == server.process.pid and f"/{model}/" in command:
            roots.add(pid)
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found - {server.process.pid}} - found:
        found |= more
    return PAGE_BYTES * sum(pages.get(pid, 0) for pid in found)
