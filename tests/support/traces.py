"""Traces of the tests' checkpoints: each is made once, for all processes of a test run and for later runs.

They are in ``build/test-cache/<key>``, the key made of the sources of ``export``, ``graph_passes`` and ``plugins``
and of the versions of what traces. Folders of other keys are removed.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import pickle
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.pipeline import trace
from tightbeam.graph_passes import ModelGraphs

__all__ = ["traced"]

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "test-cache"
MOST_BYTES = 2**24
"""Largest checkpoint whose trace is written to disk."""
PACKAGES = ("torch", "transformers", "onnx", "onnx-graphsurgeon", "onnx-ir", "onnxscript", "numpy", "safetensors")

_TRACED: dict[str, ModelGraphs] = {}


def traced(checkpoint: Checkpoint) -> ModelGraphs:
    """A copy of the checkpoint's trace, which takes torch seconds to make."""
    content = hashlib.sha256(checkpoint.family.model_type.encode())
    files = sorted([checkpoint.path / "config.json", *checkpoint.path.glob("*.safetensors")])
    for path in files:
        content.update(path.read_bytes())
    key = content.hexdigest()
    if key not in _TRACED:
        large = sum(path.stat().st_size for path in files) > MOST_BYTES
        _TRACED[key] = trace(checkpoint) if large else _shared(key, checkpoint)
    return _TRACED[key].copy()


def _shared(key: str, checkpoint: Checkpoint) -> ModelGraphs:
    path = _folder() / key[:32]
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be tracing it
        if path.exists():
            return _read(path)
        graphs = trace(checkpoint)
        _write(path, graphs)
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
def _folder() -> Path:
    content = hashlib.sha256(repr([version(package) for package in PACKAGES]).encode())
    sources = [path for name in ("export", "graph_passes", "plugins") for path in (ROOT / name).rglob("*.py")]
    for path in (Path(__file__), *sorted(sources)):
        content.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    folder = CACHE / content.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for other in CACHE.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder
