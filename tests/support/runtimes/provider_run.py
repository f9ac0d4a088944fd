"""A bundle on ONNX Runtime's CUDA provider over the stand-in for CUDA: placement of its nodes, and calls of a step.

python tests/support/runtimes/provider_run.py BUNDLE: prints JSON. The environment names the stand-in
(LD_LIBRARY_PATH), its log (CUDA_STAND_IN_LOG), onnxruntime-gpu (PYTHONPATH) and our library,
linked to a shared runtime (TIGHTBEAM_LIBRARY).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.runtimes.cuda_in_memory import Code, CudaInMemory, Work
from tightbeam.deploy import Bundle
from tightbeam.deploy.runtimes import onnxruntime_cuda
from tightbeam.deploy.runtimes.device.cuda import CudaDevice
from tightbeam.deploy.runtimes.device.decoding import DeviceDecoding
from tightbeam.deploy.tries.build import build_trie
from tightbeam.export.accuracy.compare import sources_of

BEAMS, STEPS = 3, 4
LOG = "CUDA_STAND_IN_LOG"


class StandIn(CudaInMemory):
    """CUDA as our engine calls it, over the memory of the library that ONNX Runtime calls. Nothing is late here."""

    STREAM = 0x5555000

    def __init__(self) -> None:
        super().__init__()
        self.library = ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)

    def mark(self, what: str) -> None:
        self.library.stand_in_mark(what.encode())

    def enqueue(self, stream: int, work: Work) -> None:
        super().enqueue(stream, work)
        work.run()

    def _drain(self) -> None:
        self.pending.clear()

    def cudaStreamBeginCapture(self, stream: int, mode: str) -> tuple[Code]:
        self.mark("captured")
        return super().cudaStreamBeginCapture(stream, mode)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Code, object | None]:
        self.mark("")
        return super().cudaStreamEndCapture(stream)

    def cudaGraphLaunch(self, graphExec: object, stream: int) -> tuple[Code]:
        self.launches += 1
        return (Code.cudaSuccess,)

    def _allocate(self, size: int, where: dict[int, tuple[int, Any]]) -> tuple[Code, int | None]:
        allocate: Callable[..., int] = self.library.cudaMalloc if where is self.device else self.library.cudaMallocHost
        found = ctypes.c_void_p()
        allocate(ctypes.byref(found), ctypes.c_size_t(size))
        assert found.value is not None
        where[found.value] = size, None
        return Code.cudaSuccess, found.value

    def _free(self, address: int, where: dict[int, tuple[int, Any]]) -> tuple[Code]:
        del where[address]
        return (Code.cudaSuccess,)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self.library.cudaMemcpyAsync(
            ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes), 3, ctypes.c_void_p()
        )

    def _clear(self, target: int, value: int, nbytes: int) -> None:
        ctypes.memset(target, value, nbytes)


def main() -> None:
    bundle = Bundle.load(Path(sys.argv[1]))
    cuda = StandIn()
    device = CudaDevice(cuda)
    onnxruntime_cuda.open_device = lambda: device  # type: ignore[assignment]
    engine = onnxruntime_cuda.load_onnxruntime_cuda(bundle)
    interfaces = engine.encoder_interface, engine.decoder_interface
    found: dict[str, Any] = {
        name: {
            "on_host": sorted(interface.on_host),
            "nodes": [[*where, count] for where, count in onnxruntime_cuda.placement(session).items()],
        }
        for name, interface, session in zip(("encoder", "decoder"), interfaces, engine.sessions, strict=True)
    }
    sources = sources_of(bundle)
    # The encoder of `baseline` reads sizes that kernels have made; its numbers, zeros here, fit no run. That of Whisper
    # needs cuDNN, and the prompts of decoder-only models are begun by the runner.
    needs_cudnn = any(operator == "Conv" for _, operator, _ in found["encoder"]["nodes"])
    if engine.makes_cuda_graphs and not needs_cudnn and not bundle.manifest.sizes.decoder_only:
        cuda.mark("encoder")
        decoding = engine.begin(sources.source, sources.mask, BEAMS, STEPS + 1, 2 * BEAMS)
        decoding.use_trie(build_trie([[5, 7], [8]]))
        steps(cuda, decoding)
        assert decoding.logits is not None
        found["logits"] = len(decoding.logits), len(decoding.logits[BEAMS])
        found["calls"] = calls_of(Path(os.environ[LOG]))
        found["candidates"] = [array.nbytes for array in decoding.step()]
        found["captured"] = cuda.launches > 0
    json.dump(found, sys.stdout)


def steps(cuda: StandIn, decoding: DeviceDecoding) -> None:
    inputs = decoding.inputs
    inputs["normalize"][...] = True
    inputs["repetition_penalty"][...] = 1
    inputs["ancestry"][...] = np.arange(BEAMS)[:, None]
    for step in range(STEPS):
        cuda.mark(f"step {step}")
        inputs["positions"].fill(step)
        inputs["lengths"].fill(step + 1)
        inputs["history_lengths"].fill(step + 1)
        decoding.step()
    cuda.mark("")


def calls_of(log: Path) -> dict[str, list[str]]:
    """The calls under each mark of the log, as "name bytes ends"; kernel launches are left out."""
    calls: dict[str, list[str]] = {}
    now = ""
    for line in log.read_text().splitlines():
        name, _, more = line.split(" ", 2)
        if name == "mark":
            now = more
        elif now and name != "cudaLaunchKernel":
            calls.setdefault(now, []).append(line.strip())
    return calls


if __name__ == "__main__":
    main()
