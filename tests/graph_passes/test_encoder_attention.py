"""The encoder's attention as one operator: every family's form, and the same numbers where a position counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.bundles.cache import BundleCache
from support.passes.runs import encoder_run
from tightbeam.graph_passes import PRESETS, ModelGraphs, rewrite, same_for_all, to_precision
from tightbeam.graph_passes.cleanup.encoder_attention import encoder_attention
from tightbeam.graph_passes.model import Array

FAMILIES = [
    "bart",
    "t5",
    "whisper",
    "fsmt",
    *(pytest.param(family, marks=pytest.mark.slow) for family in ("umt5", "marian", "pegasus", "mbart", "prophetnet")),
]
LENGTHS = (23, 9, 15)


def outputs(graphs: ModelGraphs, folder: Path) -> dict[str, Array]:
    """The encoder's outputs on random sources of ``LENGTHS``, by the operators' functions."""
    feeds, found = encoder_run(graphs, folder, LENGTHS)
    if "attention_mask" in feeds:  # [B, H, N, .] to the positions that count
        counted = feeds["attention_mask"].astype(np.bool_)
        return {name: array.swapaxes(1, 2)[counted] for name, array in found.items()}
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_is_replaced(bundles: BundleCache, family: str, tmp_path: Path) -> None:
    canonical = bundles.trace(family)[1]
    before, _ = rewrite(canonical, same_for_all(PRESETS["dedup"], canonical.sizes.L, ""))
    after = before.copy()
    attentions = sum(node.op == "Attention" for node in before.encoder.nodes)
    assert encoder_attention(after).matched == attentions > 0
    ops = [node.op for node in after.encoder.nodes]
    assert ops.count("EncoderAttention") == attentions
    assert not {"Attention", "Where"} & set(ops)
    exact, found = outputs(before, tmp_path / "before"), outputs(after, tmp_path / "after")
    assert exact.keys() == found.keys()
    for name, expected in exact.items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("precision", "cache", "taken"), [("fp32", None, 2), ("fp16", None, 0), ("int8", "int8", 2)])
def test_all_precisions_but_half_have_it(bundles: BundleCache, precision: str, cache: str | None, taken: int) -> None:
    canonical = bundles.trace("whisper")[1]
    variant, _ = rewrite(canonical, same_for_all(PRESETS["dedup"], canonical.sizes.L, ""))
    graphs, _ = to_precision(variant, precision, cache_precision=cache)
    assert [node.op for node in graphs.encoder.nodes].count("EncoderAttention") == taken


def test_a_prompt_keeps_its_causal_attention(bundles: BundleCache) -> None:
    graphs = bundles.trace("gpt2")[1].copy()
    result = encoder_attention(graphs)
    assert (result.matched, result.reason) == (0, "a prompt's attention is causal")


def test_masked_scores_that_still_count_stay(bundles: BundleCache) -> None:
    graphs = bundles.trace("t5")[1].copy()
    for node in graphs.encoder.nodes:
        if node.op == "Attention":
            place = node.inputs[3].inputs[0]
            place.inputs[2] = gs.Constant(f"{node.name}.masked", np.array(-5.0, np.float32))
    assert encoder_attention(graphs).matched == 0


def test_attention_of_another_form_stays(bundles: BundleCache) -> None:
    """All or none: one attention whose mask is made in another way leaves every one as it is."""
    graphs = bundles.trace("bart")[1].copy()
    last = [node for node in graphs.encoder.nodes if node.op == "Attention"][-1]
    doubled = gs.Variable("doubled", dtype=np.dtype(np.bool_))
    graphs.encoder.nodes.append(gs.Node("And", "doubled", inputs=[last.inputs[3]] * 2, outputs=[doubled]))
    last.inputs[3] = doubled
    graphs.encoder.toposort()
    result = encoder_attention(graphs)
    assert (result.matched, result.reason) == (0, "an attention has heads, a mask or a bias of another form")
    assert sum(node.op == "Attention" for node in graphs.encoder.nodes) > 1
