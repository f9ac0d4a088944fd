"""A prompt's attention as one operator, and the graph that encodes a prompt in parts: every family's form."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.causal import CAUSAL_CLASSES
from support.passes.runs import encoder_run
from support.slow_cases import slow_unless
from tightbeam.export.writing.graphs import write_graphs
from tightbeam.graph_passes import PRESETS, ModelGraphs, rewrite, same_for_all, to_precision
from tightbeam.graph_passes.cleanup.prompt_attention import prompt_attention
from tightbeam.graph_passes.cleanup.prompt_parts import prompt_parts
from tightbeam.graph_passes.model import Array
from tightbeam.plugins.library import cpu_library

N = 23
QUICK = ("gpt2", "gemma2", "bloom", "gpt_neox")
FAMILIES = slow_unless([(family,) for family in CAUSAL_CLASSES], lambda family: family in QUICK)


def variant_of(bundles: BundleCache, family: str, name: str = "dedup") -> ModelGraphs:
    canonical = bundles.trace(family)[1]
    return rewrite(canonical, same_for_all(PRESETS[name], canonical.sizes.L, ""))[0]


def in_parts(graphs: ModelGraphs, folder: Path, ids: Array, cuts: list[int], spare: int) -> dict[str, Array]:
    """The caches after the parts of a prompt between ``cuts``, in buffers with ``spare`` positions."""
    folder.mkdir()
    write_graphs(graphs, folder)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(cpu_library()))
    session = ort.InferenceSession(str(folder / "prompt.onnx"), options, providers=["CPUExecutionProvider"])
    B, N = ids.shape
    caches = {
        tensor.name: np.zeros((B, tensor.shape[1], N + spare, tensor.shape[3]), np.float32)
        for tensor in session.get_inputs()
        if tensor.name.startswith("source.")
    }
    for start, end in pairwise(cuts):
        feeds = {"input_ids": ids[:, start:end], "starts": np.full(B, start), **caches}
        caches = dict(zip(caches, session.run(None, feeds), strict=True))
    assert all((cache[:, :, N:] == 0).all() for cache in caches.values())
    return {name: cache[:, :, :N] for name, cache in caches.items()}


@pytest.mark.skipif(cpu_library() is None, reason="the CPU library was not built")
@pytest.mark.parametrize(("family",), FAMILIES)
def test_every_family_has_it_and_its_parts_give_the_same_caches(
    bundles: BundleCache, family: str, tmp_path: Path
) -> None:
    before = variant_of(bundles, family)
    after = before.copy()
    attentions = sum(node.op == "Attention" for node in before.encoder.nodes)
    assert prompt_attention(after).matched == attentions > 0
    ops = [node.op for node in after.encoder.nodes]
    assert ops.count("PromptAttention") == 1
    assert not {"Attention", "Where"} & set(ops)
    assert prompt_parts(after).matched == 2 * after.sizes.L
    feeds, exact = encoder_run(before, tmp_path / "before", (N, N))
    _, found = encoder_run(after, tmp_path / "after", (N, N))
    parts = in_parts(after, tmp_path / "parts", feeds["input_ids"], [0, 9, 10, N], spare=3)
    for name, expected in exact.items():
        for other in (found, parts):
            np.testing.assert_allclose(other[name], expected, rtol=0, atol=4e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("family", "name", "precision", "cache", "parts"),
    [
        ("llama", "dedup", "int8", None, 4),
        ("llama", "dedup", "fp32", "int8", 0),
        ("gpt2", "kcache", "fp32", None, 0),
    ],
)
def test_parts_need_keys_and_values(
    bundles: BundleCache, family: str, name: str, precision: str, cache: str | None, parts: int
) -> None:
    graphs, results = to_precision(variant_of(bundles, family, name), precision, cache_precision=cache)
    assert [node.op for node in graphs.encoder.nodes].count("PromptAttention") == 1
    assert (graphs.prompt is not None) == bool(parts)
    assert sum(result.matched for result in results if result.name == "prompt_parts") == parts


def test_an_attention_with_another_mask_stays(bundles: BundleCache) -> None:
    graphs = variant_of(bundles, "llama").copy()
    (node,) = (node for node in graphs.encoder.nodes if node.op == "Attention")
    node.inputs.append(gs.Constant("mask", np.ones((1, 1, 1, 1), np.bool_)))
    result = prompt_attention(graphs)
    assert (result.matched, result.reason[:25]) == (0, "prompt.0 has another mask")
    assert prompt_parts(graphs).reason == "the prompt's attention is not PromptAttention"


def test_a_model_with_an_encoder_has_neither(bundles: BundleCache) -> None:
    graphs = variant_of(bundles, "bart").copy()
    assert {prompt_attention(graphs).reason, prompt_parts(graphs).reason} == {"the model has an encoder"}
