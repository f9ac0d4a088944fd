"""Sessions of ONNX Runtime: opening them, checking and binding their tensors, and the text of their errors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError, ExecutionError, NonFiniteError, RuntimeSetupError, first_line
from tightbeam.deploy.runtimes.base import letters_of, unexpected_names
from tightbeam.deploy.runtimes.process.cores import allowed_cores
from tightbeam.plugins.library import ENVIRONMENT

__all__ = [
    "check_names",
    "dtypes_of",
    "is_runtime_error",
    "open_session",
    "reason_of",
    "register_library",
    "run_bound",
    "session_options",
    "value_of",
]

QUIET = 4
"""Log severity: fatal only, since every error is raised, as one line."""
CACHE_DIMENSIONS = frozenset({"R", "T_max", "T"})
TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(int8)": np.int8,
}


SPIN_US = 20
"""Microseconds for which an idle thread waits for the next operator before it sleeps. ONNX Runtime's default is a
thousand times as long, which takes cores from other programs and from the thread that the others wait for. On idle
cores the default gained no more than this (docs/benchmarks/steps.md, A tiny model, and threads)."""


def session_options(threads: int | None) -> ort.SessionOptions:
    """Return the options of a session with ``threads`` threads; None is one for each core that the process may use.

    The threads stop spinning after a run. Otherwise they take the cores from another session's run (on 2 cores a step
    took twice as long next to a second session).
    """
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # for `placement`
    cores = allowed_cores()
    if threads is not None or cores < (os.cpu_count() or 1):  # by default as many as the whole machine has
        options.intra_op_num_threads = threads or cores
    return options


def open_session(
    bundle: Bundle,
    graph: GraphEntry,
    options: ort.SessionOptions,
    providers: Sequence[str | tuple[str, dict[str, str]]],
    weights: Mapping[str, ort.OrtValue],
) -> ort.InferenceSession:
    """Open a session of a graph of the bundle.

    Parameters
    ----------
    weights : mapping of str to OrtValue
        Initializers that replace the file's. They must outlive the session.

    Raises
    ------
    BundleError
        ONNX Runtime refuses the graph, or the graph differs from the manifest.
    """
    path = bundle.file(graph)
    try:
        for name, value in weights.items():
            options.add_initializer(name, value)
        session = ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime raises classes of its own, without a common base
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot load {path}: {reason_of(error)}; export the model again"
        ) from error
    inputs = [(tensor.name, tuple(tensor.shape)) for tensor in session.get_inputs()]
    outputs = [tensor.name for tensor in session.get_outputs()]
    if inputs != [(want.name, want.shape) for want in graph.inputs] or outputs != [want.name for want in graph.outputs]:
        raise BundleError(f"{path} has other inputs or outputs than bundle.json says; export the model again")
    known = {name: np.dtype(dtype).name for name, dtype in dtypes_of(session).items() if dtype is not None}
    wanted = {tensor.name: tensor.dtype for tensor in (*graph.inputs, *graph.outputs)}
    if known != {name: wanted[name] for name in known}:
        raise BundleError(f"{path} has inputs or outputs of other types than bundle.json says; export the model again")
    return session


def is_runtime_error(error: Exception) -> bool:
    """True for an exception of ONNX Runtime, whose classes have no common base."""
    return "onnxruntime" in type(error).__module__


def reason_of(error: Exception) -> str:
    """Return the message of an ONNX Runtime exception as one line."""
    return first_line(error).rpartition("Status Message: ")[2]


def dtypes_of(session: ort.InferenceSession) -> dict[str, type[np.generic] | None]:
    """Return the types of inputs and outputs by name; None for a type that numpy lacks."""
    return {tensor.name: TYPES.get(tensor.type) for tensor in (*session.get_inputs(), *session.get_outputs())}


def register_library(options: ort.SessionOptions, library: Path | None) -> None:
    """Register the operators' kernels, which run in place of the functions inside a model. Raises RuntimeSetupError."""
    if library is None:
        return
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # classes of its own, as above
        chosen = f"name another in {ENVIRONMENT}" if os.environ.get(ENVIRONMENT) else "install tightbeam again"
        raise RuntimeSetupError(
            f"ONNX Runtime {ort.__version__} cannot load the operators' library {library}: {reason_of(error)}; "
            f"{chosen}, or run the functions inside the model, slower: {ENVIRONMENT}=none"
        ) from error


def check_names(bundle: Bundle, dtypes: Mapping[str, type[np.generic] | None]) -> None:
    """Raise BundleError for graphs that cannot be run. ``dtypes`` has the decoder's types; None is unsupported."""
    manifest = bundle.manifest
    names = unexpected_names(manifest.encoder, manifest.decoder, manifest.cache_states)
    names |= {name for name, dtype in dtypes.items() if dtype is None}
    for state in manifest.cache_states:
        names |= letters_of(state.shape) - CACHE_DIMENSIONS
    if names:
        shown = ", ".join(sorted(map(repr, names)))
        raise BundleError(f"{bundle.path}: unknown or missing in its graphs: {shown}; export the model again")


def run_bound(
    session: ort.InferenceSession, binding: ort.IOBinding, graph: str, options: ort.RunOptions | None = None
) -> None:
    """Run a session over bound tensors. Raises ExecutionError, which names the ``graph``, or NonFiniteError."""
    try:
        session.run_with_iobinding(binding, options)
    except Exception as error:  # classes of its own, without a common base
        reason = reason_of(error)
        if reason.startswith("BeamTopK: logits["):
            raise NonFiniteError(f"the model's scores are NaN or infinite ({reason})") from error
        raise ExecutionError(
            f"ONNX Runtime {ort.__version__} cannot run the {graph}: {reason}; "
            "run fewer rows together if memory ran out, else export the model again"
        ) from error


def value_of(array: Array) -> ort.OrtValue:
    """Wrap an array as an OrtValue over the same memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)
