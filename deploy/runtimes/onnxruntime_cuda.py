"""The runtime on ONNX Runtime's CUDA provider (``--device cuda``)."""

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
from tightbeam.deploy.errors import BundleError, RuntimeSetupError
from tightbeam.deploy.runtimes._onnxruntime import (
    check_names,
    dtypes_of,
    open_session,
    reason_of,
    register_library,
    session_options,
)
from tightbeam.deploy.runtimes.base import source_outputs
from tightbeam.deploy.runtimes.device.cuda import CudaDevice, open_device
from tightbeam.deploy.runtimes.device.graphs import Interface
from tightbeam.deploy.runtimes.device.runtime import DeviceRuntime
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
    # The arena grows by doubling, so that a step finds its memory in the arena of the step before, as a CUDA graph
    # requires. With "kSameAsRequested" a step sometimes allocated one piece more, and batches of slowly growing size
    # left an arena of five times the largest batch, since pieces that are too small are never freed.
    "arena_extend_strategy": "kNextPowerOfTwo",
}
SETTINGS = frozenset(
    {"num_beams", "candidates", "normalize", "repetition_penalty", "no_repeat_ngram_size", "all_logits"}
)
"""Inputs that may be read in host memory: single numbers, constant for a batch."""
ENCODED_TOGETHER = 16384
"""Source positions encoded at a time: enough to occupy every multiprocessor. The arena grows with them."""


class SessionError(RuntimeError):
    """Failure of ONNX Runtime to bind or to run; the message is its reason."""


def load_onnxruntime_cuda(bundle: Bundle) -> OnnxRuntimeCuda:
    """Load a bundle on this machine's GPU.

    Raises
    ------
    DeviceError
        There is no GPU.
    RuntimeSetupError
        ONNX Runtime's CUDA provider, or the operators' CUDA library, is missing or cannot be loaded.
    BundleError
        ONNX Runtime refuses a graph.
    """
    if bundle.manifest.cpu_alone is not None:
        raise BundleError(
            f"bundle {bundle.path} {bundle.manifest.cpu_alone}, whose operators run on the CPU alone; pass --device "
            "cpu, or export the model in fp32 or fp16 for a GPU"
        )
    if PROVIDER not in ort.get_available_providers():
        raise RuntimeSetupError(
            f"this ONNX Runtime ({ort.__version__}) has no CUDA provider; pip uninstall onnxruntime, then pip install "
            "onnxruntime-gpu; or run on the CPU: --device cpu"
        )
    library = _library()
    device = open_device()
    with redirect_stdout(io.StringIO()):  # it prints the libraries that it does not find; the provider is checked below
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
            "this installation has no kernels for CUDA, which are built only on request; on a machine with nvcc, run "
            "pip install '.[cuda]' -C cmake.define.TIGHTBEAM_CUDA=ON in a clone, or run the functions inside the "
            f"model, slower: {ENVIRONMENT}=none"
        )
    return library


def _open(bundle: Bundle, graph: GraphEntry, device: CudaDevice, library: Path | None) -> ort.InferenceSession:
    options = session_options(threads=1)
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    # A step then allocates the same pieces each time, so that a captured one needs no more.
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
    """Runtime over two sessions, which compute on the stream of ``device``.

    Parameters
    ----------
    bundle : Bundle
    device : CudaDevice
    encoder, decoder : InferenceSession
    where : str
        ONNX Runtime's name for the memory of ``device``.
    on_host : callable, optional
        Used in place of `inputs_on_host`.
    encoded_together : int
        Source positions to encode at a time.

    Raises
    ------
    BundleError
        The graphs have unknown tensors, or lack some.
    """

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
        manifest = bundle.manifest
        host = on_host or inputs_on_host
        check_names(bundle, dtypes_of(decoder))
        self.sessions = encoder, decoder
        names = source_outputs(manifest.encoder)
        read = tuple(tensor for tensor in manifest.encoder.outputs if tensor.name in names)
        interfaces = (
            Interface(manifest.encoder.inputs, read, host(encoder)),
            Interface(manifest.decoder.inputs, manifest.decoder.outputs, host(decoder)),
        )
        _check_on_host(*interfaces)
        graphs = (
            SessionGraph(encoder, where, interfaces[0].on_host),
            SessionGraph(decoder, where, interfaces[1].on_host),
        )
        super().__init__(device, interfaces, graphs, manifest.cache_states, encoded_together)

    def failure_message(self, graph: str, error: Exception) -> str:
        if "cuDNN is unavailable" in str(error):  # ONNX Runtime loads cuDNN when the first operator needs it
            return f"ONNX Runtime {ort.__version__} cannot run the {graph} on the GPU: {error}; {INSTALL_CUDA}"
        return (
            f"ONNX Runtime {ort.__version__} cannot run the {graph} on the GPU: {error}; run fewer rows together if "
            "memory ran out, else export the model again"
        )


def _check_on_host(encoder: Interface, decoder: Interface) -> None:
    """Raise RuntimeSetupError for a session that would read device inputs in host memory."""
    others = sorted((encoder.on_host - SETTINGS) | (decoder.on_host - SETTINGS))
    if others:
        raise RuntimeSetupError(
            f"ONNX Runtime {ort.__version__} would read {others[0]!r} in host memory, since its library has no kernels "
            f"for CUDA of some operators; unset {ENVIRONMENT}, or name libtightbeam_cuda.so there; or run on the CPU: "
            "--device cpu"
        )


def inputs_on_host(session: ort.InferenceSession) -> frozenset[str]:
    """Return the names of the inputs that a session reads in host memory: sizes, and settings of our operators."""
    memory = session.get_input_memory_infos()
    return frozenset(
        tensor.name for tensor, info in zip(session.get_inputs(), memory, strict=True) if info.name != "Cuda"
    )


def placement(session: ort.InferenceSession) -> Counter[tuple[str, str]]:
    """Count the nodes by (provider, operator)."""
    return Counter(
        (part.ep_name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


class SessionGraph:
    """A ``Graph`` over a session, with all tensors bound. Its exceptions are SessionErrors."""

    def __init__(self, session: ort.InferenceSession, where: str, on_host: frozenset[str]) -> None:
        self._session = session
        self._where = where
        self._on_host = on_host
        self._dtypes = dtypes_of(session)
        self._binding = session.io_binding()
        self._options = ort.RunOptions()
        # The runtime synchronizes the stream itself, once, after the copies of the candidates.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def set_input(self, name: str, shape: Sequence[int], address: int) -> None:
        where = "cpu" if name in self._on_host else self._where
        self._bind(self._binding.bind_input, name, where, shape, address)

    def set_output(self, name: str, shape: Sequence[int], address: int) -> None:
        self._bind(self._binding.bind_output, name, self._where, shape, address)

    def can_be_captured(self, stream: int) -> bool:
        return True

    def execute(self, stream: int) -> None:
        """Run on the stream that the session was opened with."""
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # classes of its own, without a common base
            raise SessionError(reason_of(error)) from error

    def _bind(self, bind: Any, name: str, where: str, shape: Sequence[int], address: int) -> None:
        try:
            bind(name, where, 0, self._dtypes[name], list(shape), address)
        except Exception as error:  # as above
            raise SessionError(reason_of(error)) from error
