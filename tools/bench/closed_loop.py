"""Closed-loop clients of a served model: each keeps one request in flight, while the server's counters are read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

from tightbeam.deploy.serving.server.local_server import LocalServer

__all__ = ["ClosedLoop", "Load", "Response"]

OUTPUTS = ("OUTPUT_IDS", "OUTPUT_LENGTHS")
COUNTERS = {
    "steps": "tightbeam_steps_total",
    "sample_steps": "tightbeam_sample_steps_total",
    "requests": "nv_inference_request_success",
    "queue_us": "nv_inference_queue_duration_us",
}


@dataclass(frozen=True)
class Response:
    """The response to one source: its sequences, and when it was sent and received, in seconds."""

    source: int
    client: int
    sent: float
    came: float
    sequences: list[list[int]]


@dataclass
class Load:
    """Responses of all clients and counters of the server, in so many seconds after the warm-up."""

    clients: int
    seconds: float
    responses: list[Response] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=dict)

    @property
    def requests_per_second(self) -> float:
        """Responses a second, summed over clients: each between its first response and its last, so that the moment of
        the time limit within a batch does not matter. All responses by seconds if a client has fewer than two.
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
        """Samples in an average step."""
        return self.counted["sample_steps"] / max(1.0, self.counted["steps"])

    @property
    def queue_ms(self) -> float:
        """Average milliseconds of a request in Triton's queue."""
        return 1e-3 * self.counted["queue_us"] / max(1.0, self.counted["requests"])


class ClosedLoop:
    """Clients that send the next request as soon as the response to the last one is there.

    Parameters
    ----------
    server : LocalServer
    model : str
        Name of the served model.
    sources : sequence of list of int
        Token ids of each source.
    parameters : mapping
        Those of every request.
    clients : int
    seconds : float
        Seconds of measurement.
    """

    def __init__(
        self,
        server: LocalServer,
        model: str,
        sources: Sequence[list[int]],
        parameters: Mapping[str, Any],
        *,
        clients: int,
        seconds: float,
    ) -> None:
        self._server = server
        self._model = model
        self._inputs = [triton.InferInput("INPUT_IDS", [1, len(ids)], "INT64") for ids in sources]
        for tensor, ids in zip(self._inputs, sources, strict=True):
            tensor.set_data_from_numpy(np.array([ids]))
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
            await asyncio.sleep(load.seconds)
            self._open = False
            after = await asyncio.to_thread(self._counters)
            load.counted = {name: after[name] - before[name] for name in before}
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            with suppress(triton.InferenceServerException):
                await self._infer(client, 0)  # comes through when the running requests are over
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
                await asyncio.sleep(0.1)  # a server that is gone does not get a thousand requests a second
            else:
                if self._open:
                    ids, lengths = (response.as_numpy(name)[0] for name in OUTPUTS)
                    rows = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
                    self._load.responses.append(Response(source, number, sent, time.perf_counter(), rows))
            source += self._load.clients

    async def _infer(self, client: Any, source: int) -> Any:
        wanted = [triton.InferRequestedOutput(name) for name in OUTPUTS]
        return await client.infer(self._model, [self._inputs[source]], outputs=wanted, parameters=self._parameters)

    def _counters(self) -> dict[str, float]:
        found = self._server.counters(self._model)
        return {name: found.get(metric, 0.0) for name, metric in COUNTERS.items()}
