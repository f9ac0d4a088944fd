"""The engine on ONNX Runtime's CUDA provider."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import onnxruntime as ort

from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.runtimes._cuda import CudaDevice, open_device
from tightbeam.deploy.runtimes._device_runtime import DeviceRuntime, Interface
from tightbeam.deploy.runtimes._onnxruntime import (
    check_names,
    dtypes_of,
    open_session,
    reason_of,
    register_library,
    session_options,
)
from tightbeam.deploy.runtimes.errors import RuntimeSetupError
from tightbeam.plugins.library import ENVIRONMENT, cuda_library

__all__ = [
    "OnnxRuntimeCuda",
    "SessionError",
    "SessionGraph",
    "inputs_on_host",
    "load_onnxruntime_cuda",
    "placement",
]

PROVIDER = "CUDAExecutionProvider"
INSTALL_CUDA = "pip install 'onnxruntime-gpu[cuda,cudnn]'; or run on the CPU: --device cpu"
OPTIONS = {
    "use_tf32": "0",  # float32 is float32: its tokens are those of the CPU
    "cudnn_conv_algo_search": "HEURISTIC",
    # Memory to work in grows by doubling: a step finds what it needs in what the step before took, which a CUDA graph
    # needs. Taken as it is asked for, a step sometimes took one piece more, and batches that grew by degrees left five
    # times what the largest needs, since what is too small for the next one is never given back.
    "arena_extend_strategy": "kNextPowerOfTwo",
}
SETTINGS = frozenset({"num_beams", "candidates", "normalize", "repetition_penalty", "no_repeat_ngram_size"})
"""Inputs that may be read on the host: a few numbers, the same for a whole batch."""
ENCODED_TOGETHER = 16384
"""Source positions that the encoder takes at a time: work for every multiprocessor. The memory that it works in grows
with them."""


class SessionError(RuntimeError):
    """ONNX Runtime refused something; the message says what."""


def load_onnxruntime_cuda(bundle: Bundle) -> OnnxRuntimeCuda:
    """The engine of ``bundle`` on this machine's GPU.

    Raises DeviceError without a GPU, RuntimeSetupError without ONNX Runtime's CUDA provider or our CUDA library, and
    BundleError where ONNX Runtime refuses a graph.
    """
    if PROVIDER not in ort.get_available_providers():
        raise RuntimeSetupError(
            f"this ONNX Runtime ({ort.__version__}) has no CUDA provider; pip uninstall onnxruntime, then pip install "
            "onnxruntime-gpu; or run on the CPU: --device cpu"
        )
    library = _library()
    device = open_device()
    with redirect_stdout(io.StringIO()):  # what it does not find, it prints; a provider that lacks it is told below
        ort.preload_dlls()
    manifest = bundle.manifest
    encoder = _open(bundle, manifest.encoder, device, library)
    decoder = _open(bundle, manifest.decoder, device, library)
    return OnnxRuntimeCuda(bundle, device, encoder, decoder)


def _library() -> Path | None:
    try:
        library = cuda_library()
    except FileNotFoundError as error:
        raise RuntimeSetupError(str(error)) from error
    if library is None and not os.environ.get(ENVIRONMENT):
        raise RuntimeSetupError(
            "this installation has no kernels for CUDA, since there was no nvcc when it was built; install tightbeam "
            "again where nvcc is (make cuda in a clone), or run the functions inside the model, slower: "
            f"{ENVIRONMENT}=none"
        )
    return library


def _open(bundle: Bundle, graph: GraphEntry, device: CudaDevice, library: Path | None) -> ort.InferenceSession:
    options = session_options(threads=1)
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    # A step takes its memory in the same pieces each time, so that one that is captured needs no more.
    options.enable_mem_pattern = False
    register_library(options, library)
    own = {**OPTIONS, "user_compute_stream": str(device.stream)}
    session = open_session(bundle, graph, options, [(PROVIDER, own), "CPUExecutionProvider"], {})
    if session.get_providers()[0] != PROVIDER:
        raise RuntimeSetupError(
            f"ONNX Runtime {ort.__version__} could not load its CUDA provider, mostly for want of CUDA's or cuDNN's "
            f"libraries; {INSTALL_CUDA}"
        )
    return session


class OnnxRuntimeCuda(DeviceRuntime):
    """Two sessions, which compute on the stream of ``device``. Raises BundleError where the manifest does not describe
    them."""

    failures = SessionError

    def __init__(
        self,
        bundle: Bundle,
        device: CudaDevice,
        encoder: ort.InferenceSession,
        decoder: ort.InferenceSession,
        *,
        where: str = "cuda",
        on_host: Callable[[ort.InferenceSession], frozenset[str]] | None = None,
        encoded_together: int = ENCODED_TOGETHER,
    ) -> None:
        """``where``: what ONNX Runtime calls the memory of ``device``; ``on_host``: in place of ``inputs_on_host``."""
        manifest = bundle.manifest
        host = on_host or inputs_on_host
        check_names(bundle, dtypes_of(decoder))
        self.sessions = encoder, decoder
        interfaces = (
            Interface(manifest.encoder.inputs, manifest.encoder.outputs, host(encoder)),
            Interface(manifest.decoder.inputs, manifest.decoder.outputs, host(decoder)),
        )
        _check_on_host(*interfaces)
        graphs = (
            SessionGraph(encoder, where, interfaces[0].on_host),
            SessionGraph(decoder, where, interfaces[1].on_host),
        )
        super().__init__(device, interfaces, graphs, manifest.cache_states, encoded_together)

    def failure_message(self, graph: str, error: Exception) -> str:
        if "cuDNN is unavailable" in str(error):  # it is looked for when the first operator needs it
            return f"ONNX Runtime {ort.__version__} cannot run the {graph} on the GPU: {error}; {INSTALL_CUDA}"
        return (
            f"ONNX Runtime {ort.__version__} cannot run the {graph} on the GPU: {error}; run fewer rows together if "
            "memory ran out, else export the model again"
        )


def _check_on_host(encoder: Interface, decoder: Interface) -> None:
    """Raise RuntimeSetupError for a session that reads in host memory what is on the GPU."""
    others = sorted((encoder.on_host - SETTINGS) | (decoder.on_host - SETTINGS))
    if others:
        raise RuntimeSetupError(
            f"ONNX Runtime {ort.__version__} would read {others[0]!r} in host memory, since its library has no kernels "
            f"for CUDA of some operators; unset {ENVIRONMENT}, or name libtightbeam_cuda.so there; or run on the CPU: "
            "--device cpu"
        )


def inputs_on_host(session: ort.InferenceSession) -> frozenset[str]:
    """The inputs that a session reads in host memory: sizes, and the settings of our operators."""
    memory = session.get_input_memory_infos()
    return frozenset(
        tensor.name for tensor, info in zip(session.get_inputs(), memory, strict=True) if info.name != "Cuda"
    )


def placement(session: ort.InferenceSession) -> Counter[tuple[str, str]]:
    """How many nodes of each kind run on each provider: (provider, operator)."""
    return Counter(
        (part.ep_name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


class SessionGraph:
    """A ``Graph`` of ONNX Runtime: a session with everything bound. What it refuses is a SessionError."""

    def __init__(self, session: ort.InferenceSession, where: str, on_host: frozenset[str]) -> None:
        self._session = session
        self._where = where
        self._on_host = on_host
        self._dtypes = dtypes_of(session)
        self._binding = session.io_binding()
        self._options = ort.RunOptions()
        # The engine waits for its stream itself, once, when the candidates are on their way too.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def set_input(self, name: str, shape: Sequence[int], address: int) -> None:
        where = "cpu" if name in self._on_host else self._where
        self._bind(self._binding.bind_input, name, where, shape, address)

    def set_output(self, name: str, shape: Sequence[int], address: int) -> None:
        self._bind(self._binding.bind_output, name, self._where, shape, address)

    def can_be_captured(self, stream: int) -> bool:
        return True

    def execute(self, stream: int) -> None:
        """On the stream that the session was opened with."""
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # classes of its own, without a common base
            raise SessionError(reason_of(error)) from error

    def _bind(self, bind: Any, name: str, where: str, shape: Sequence[int], address: int) -> None:
        try:
            bind(name, where, 0, self._dtypes[name], list(shape), address)
        except Exception as error:  # as above
            raise SessionError(reason_of(error)) from error
