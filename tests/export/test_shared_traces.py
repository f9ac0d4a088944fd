"""A trace into which other weights were put is the trace of a checkpoint with those weights."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest
import torch

from support.bundles.cache import BundleCache
from support.bundles.traces import REPLACED, ROOT, SOURCES, weights_of, with_weights
from support.checkpoints.edits import edit_weights
from support.checkpoints.families import CheckpointCache
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.pipeline import trace
from tightbeam.graph_passes import ModelGraphs

ZEROED = "model.decoder.layers.0.encoder_attn.v_proj.weight"


def written(graphs: ModelGraphs) -> list[bytes]:
    return [gs.export_onnx(graph).graph.SerializeToString() for graph in (graphs.encoder, graphs.decoder)]


@pytest.mark.slow
@pytest.mark.parametrize("family", REPLACED)
def test_other_weights_give_their_own_trace(bundles: BundleCache, checkpoints: CheckpointCache, family: str) -> None:
    first, graphs = bundles.trace(family)
    other = load_checkpoint(checkpoints(family, seed=1))
    replaced = with_weights(graphs, weights_of(first), weights_of(other))
    assert replaced is not None
    assert written(replaced) == written(trace(other)) != written(graphs)
    again = with_weights(replaced, weights_of(other), weights_of(first))
    assert again is not None and written(again) == written(graphs)


def test_weights_that_a_trace_may_treat_otherwise_are_traced(
    bundles: BundleCache, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    """Zeros, which may be folded, weights of another shape, and a number of the graph that is no weight."""
    first, graphs = bundles.trace("bart")
    before = weights_of(first)
    folder = checkpoints.copy(tmp_path / "zeros")
    edit_weights(folder, lambda weights: weights[ZEROED].zero_())
    assert with_weights(graphs, before, weights_of(load_checkpoint(folder))) is None
    assert with_weights(graphs, before, {**before, ZEROED: before[ZEROED][1:]}) is None
    unknown = {**before, ZEROED: before[ZEROED] + 1}
    assert with_weights(graphs, unknown, before) is None


def test_weights_that_were_tied_stay_tied(bundles: BundleCache) -> None:
    first, graphs = bundles.trace("bart")
    before = weights_of(first)
    tied = [name for name, array in before.items() if np.array_equal(array, before["model.shared.weight"])]
    assert len(tied) > 1
    assert with_weights(graphs, before, {**before, tied[-1]: torch.rand(before[tied[-1]].shape).numpy()}) is None


def test_a_trace_depends_on_the_passes_of_its_key_alone() -> None:
    """What traces imports no other pass. `caches.cost` counts bytes, and makes no graph."""
    passes = "tightbeam.graph_passes"
    allowed = {f"{passes}.{path.stem}" for path in (ROOT / "graph_passes").glob("*.py")} | {f"{passes}.caches.cost"}
    wrong = set()
    for path in [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (module := node.module or "").startswith(passes):
                continue
            of_model = module == passes and {name.name for name in node.names} <= {"ModelGraphs", "Sizes"}
            if not of_model and module not in allowed and not module.startswith(f"{passes}.canonical."):
                wrong.add(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == set()
