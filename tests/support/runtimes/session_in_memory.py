"""A runner on ``OnnxRuntimeCuda`` over plain memory and ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.runtimes.cuda_in_memory import ALIGNMENT, CudaInMemory, Work
from support.runtimes.whole_prompts import open_whole
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.runtimes.device.cuda import CudaDevice
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.runtimes.onnxruntime_cuda import OnnxRuntimeCuda, SessionGraph

ON_HOST = frozenset({"num_beams", "candidates", "normalize", "repetition_penalty", "no_repeat_ngram_size"})
"""Inputs that our operators read in host memory, by their tables."""


@dataclass
class Late:
    """A graph whose work runs when its stream is synchronized. Bindings are checked as CUDA's provider would."""

    cuda: CudaInMemory
    graph: SessionGraph
    on_host: frozenset[str]
    bound: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    runs: int = 0
    failure: Exception | None = None

    def set_input(self, name: str, shape: Sequence[int], address: int) -> None:
        self._set(name, shape, address)
        self.graph.set_input(name, shape, address)

    def set_output(self, name: str, shape: Sequence[int], address: int) -> None:
        self._set(name, shape, address)
        self.graph.set_output(name, shape, address)

    def _set(self, name: str, shape: Sequence[int], address: int) -> None:
        dtype: Any = self.graph._dtypes[name]
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.cuda.check(address, nbytes, self.cuda.host if name in self.on_host else self.cuda.device)
        assert address % ALIGNMENT == 0
        self.bound[name] = tuple(shape), address

    def can_be_captured(self, stream: int) -> bool:
        return self.graph.can_be_captured(stream)

    def execute(self, stream: int) -> None:
        if self.failure:
            raise self.failure
        bound = dict(self.bound)
        # Inputs on the host are read now; repeated launches get the same values.
        held = {
            name: self.cuda.array(address, shape, self.graph._dtypes[name], on_host=True).copy()
            for name, (shape, address) in bound.items()
            if name in self.on_host
        }

        def run() -> None:
            for name, (shape, address) in bound.items():
                if name in held:
                    address = held[name].ctypes.data
                bind = self.graph.set_input if name in self.inputs else self.graph.set_output
                bind(name, shape, address)
            self.graph.execute(stream)
            self.runs += 1

        self.cuda.enqueue(stream, Work("execute", 0, run))

    @property
    def inputs(self) -> set[str]:
        return {tensor.name for tensor in self.graph._session.get_inputs()}


@dataclass
class InMemory:
    """A runner on ``OnnxRuntimeCuda`` over plain memory. ``owner`` holds the weights of the sessions."""

    cuda: CudaInMemory
    runtime: OnnxRuntimeCuda
    runner: Runner
    owner: OnnxRuntimeCpu

    @property
    def encoder(self) -> Any:
        return self.runtime.encoder

    @property
    def decoder(self) -> Any:
        return self.runtime.decoder


def in_memory(path: Path, encoded_together: int = 1 << 20, on_host: frozenset[str] = ON_HOST) -> InMemory:
    bundle = Bundle.load(path)
    cpu = open_whole(bundle)
    cuda = CudaInMemory()
    engine = OnnxRuntimeCuda(
        bundle,
        CudaDevice(cuda),
        cpu.encoder,
        cpu.decoder,
        where="cpu",
        on_host=lambda session: on_host & {tensor.name for tensor in session.get_inputs()},
        encoded_together=encoded_together,
    )
    for name, interface in (("encoder", engine.encoder_interface), ("decoder", engine.decoder_interface)):
        setattr(engine, name, Late(cuda, getattr(engine, name), interface.on_host))
    return InMemory(cuda, engine, Runner(bundle, engine, None), cpu)


KINDS = {"host to device": "HtoD", "device to host": "DtoH", "within the device": "DtoD", "clear": "memset"}


def events_in_memory(cuda: CudaInMemory, work: Callable[[], object]) -> list[tuple[str, int]]:
    """Return the events during ``work``: kinds as in `tools/gpu/step.py`, and bytes copied."""
    before = len(cuda.done)
    work()
    return [(KINDS.get(done.kind, "kernel"), done.nbytes) for done in cuda.done[before:]]
