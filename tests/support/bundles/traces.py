"""Traces of the tests' checkpoints: each is made once, for all processes of a test run and for later runs.

They are in ``build/test-cache/<key>``, the key made of the sources that a trace depends on and of the versions of what
traces. Folders of other keys are removed.

Checkpoints of a family in ``REPLACED`` that differ in their weights alone share one trace: :func:`with_weights` puts
other weights into it. ``tests/export/test_shared_traces.py`` compares that with the trace of those weights.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
import shutil
import time
from collections import defaultdict
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.pipeline import trace
from tightbeam.graph_passes import ModelGraphs

__all__ = ["REPLACED", "cache_folder", "traced", "weights_of", "with_weights"]

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / "build" / "test-cache"
UNUSED_S = 6 * 3600
"""Traces of other sources are removed when no run of the tests has used them for so long."""
SOURCES = ("export/checkpoint", "export/families", "export/tracing", "graph_passes/canonical", "plugins")
"""The folders that a trace depends on, beside the files of `graph_passes` itself. Later passes are not there."""
MOST_BYTES = 2**24
"""Largest checkpoint whose trace is written to disk."""
PACKAGES = ("torch", "transformers", "onnx", "onnx-graphsurgeon", "onnx-ir", "onnxscript", "numpy", "safetensors")
REPLACED = ("bart", "opt")
"""Families of which tests have many checkpoints that differ in their weights alone."""

Array = Any
Weights = dict[str, Array]

_TRACED: dict[str, ModelGraphs] = {}


def traced(checkpoint: Checkpoint) -> ModelGraphs:
    """A copy of the checkpoint's trace, which takes torch seconds to make."""
    family = f"{checkpoint.family.model_type} {checkpoint.family.global_tokens} {checkpoint.family.short_audio}"
    config = hashlib.sha256(family.encode() + (checkpoint.path / "config.json").read_bytes())
    content, weights = config.copy(), weights_of(checkpoint)
    for name, array in weights.items():
        content.update(name.encode() + repr(array.shape).encode() + array.tobytes())
    key = content.hexdigest()
    if key not in _TRACED:
        large = sum(array.nbytes for array in weights.values()) > MOST_BYTES
        _TRACED[key] = trace(checkpoint) if large else _shared(key[:32], config.hexdigest()[:32], checkpoint)
    return _TRACED[key].copy()


def weights_of(checkpoint: Checkpoint) -> Weights:
    """The model's weights by name."""
    return {name: tensor.numpy() for name, tensor in checkpoint.model.state_dict().items()}


def with_weights(graphs: ModelGraphs, before: Weights, after: Weights) -> ModelGraphs | None:
    """A copy of a trace with other weights.

    None where that may not be the trace of those weights: where the graphs have numbers that are neither a weight, nor
    the transpose of one, nor a single number; where two weights were equal and no longer are; or where a weight has
    one value throughout, which torch's exporter might fold.
    """
    copied = graphs.copy()
    if {name: array.shape for name, array in before.items()} != {name: array.shape for name, array in after.items()}:
        return None
    names: dict[tuple[tuple[int, ...], bytes], list[tuple[str, bool]]] = defaultdict(list)
    for name, array in before.items():
        names[array.shape, array.tobytes()].append((name, False))
        names[array.T.shape, array.T.tobytes()].append((name, True))
    for graph in (copied.encoder, copied.decoder):
        for tensor in graph.tensors().values():
            if not isinstance(tensor, gs.Constant) or tensor.values.size < 2 or tensor.values.dtype.kind != "f":
                continue
            found = names.get((tensor.values.shape, tensor.values.tobytes()), [])
            arrays = [after[name].T if turned else after[name] for name, turned in found]
            if not arrays or np.ptp(arrays[0]) == 0 or any(not np.array_equal(arrays[0], other) for other in arrays):
                return None
            tensor.values = np.ascontiguousarray(arrays[0])
    return copied


def _shared(key: str, config: str, checkpoint: Checkpoint) -> ModelGraphs:
    """The trace of the checkpoint ``key``, made of one with the same ``config`` where that can be."""
    folder = cache_folder()
    first = folder / f"{config}.weights"
    with (folder / f"{config}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be tracing it
        if (folder / key).exists():
            return _read(folder / key)
        graphs = None
        if first.exists():
            other, weights = pickle.loads(first.read_bytes())
            graphs = with_weights(_read(folder / other), weights, weights_of(checkpoint))
        graphs = graphs or trace(checkpoint)
        _write(folder / key, graphs)
        if checkpoint.family.model_type in REPLACED and not first.exists():
            first.write_bytes(pickle.dumps((key, weights_of(checkpoint))))
        return graphs


def _write(path: Path, graphs: ModelGraphs) -> None:
    encoder, decoder = (gs.export_onnx(graph).SerializeToString() for graph in (graphs.encoder, graphs.decoder))
    rest: Any = replace(graphs, encoder=None, decoder=None)  # type: ignore[arg-type]
    written = path.with_suffix(".tmp")
    written.write_bytes(pickle.dumps((encoder, decoder, rest)))
    written.replace(path)


def _read(path: Path) -> ModelGraphs:
    encoder, decoder, rest = pickle.loads(path.read_bytes())
    graphs = (gs.import_onnx(onnx.load_from_string(graph)) for graph in (encoder, decoder))
    return replace(rest, **dict(zip(("encoder", "decoder"), graphs, strict=True)))


@functools.cache
def cache_folder() -> Path:
    """The folder of what these sources and these versions of packages give."""
    content = hashlib.sha256(repr([version(package) for package in PACKAGES]).encode())
    sources = [path for name in SOURCES for path in (ROOT / name).rglob("*.py")]
    for path in (Path(__file__), *sorted([*sources, *(ROOT / "graph_passes").glob("*.py")])):
        content.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    folder = CACHE / content.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in CACHE.iterdir():
        if time.time() - other.stat().st_mtime > UNUSED_S:  # another run of the tests may use it
            shutil.rmtree(other, ignore_errors=True)
    return folder
