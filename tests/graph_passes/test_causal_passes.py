"""The passes of decoder-only models: the graphs before against the graphs after, and both against torch in float64."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.cache import BundleCache
from support.passes.runs import empty_caches, random_run, run_step, sessions, step_feeds
from support.tolerance import LUCK, assert_close
from tightbeam.graph_passes import PRESETS, LayerPlan, ModelGraphs, PassError, passes_of, rewrite, same_for_all
from tightbeam.graph_passes.caches.generated.kv import self_beam_cache
from tightbeam.graph_passes.caches.kinds import PROMPT_PAIRS
from tightbeam.graph_passes.caches.source.kv import prompt_shared
from tightbeam.graph_passes.cleanup.fold_biases import fold_biases
from tightbeam.graph_passes.cleanup.search_head import search_head

B, M, T = 3, 2, 6
R = B * M
COUNTS = (8, 3, 1)
"""Tokens of each prompt."""
N = max(COUNTS) - 1
JOINED = [*itertools.product(("kv", "k", "states"), ("kv", "k")), ("states", "x")]
"""Prompt and generated caches that go together in one layer, besides kv-per-beam + kv-reordered."""


@pytest.fixture(scope="module")
def run_(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One random run: prompts of three lengths, tokens, and beams that are reordered at every step."""
    generator = np.random.default_rng(3)
    prompts = [generator.integers(3, 90, count) for count in COUNTS]
    run = random_run(generator, B, M, T, np.repeat([prompt[-1] for prompt in prompts], M))
    mask = (np.arange(N) < np.array(COUNTS)[:, None] - 1).astype(np.int64)
    ids = np.zeros((B, N), np.int64)
    for b, prompt in enumerate(prompts):
        ids[b, : len(prompt) - 1] = prompt[:-1]
    folder = tmp_path_factory.mktemp("graphs")
    return {**run, "ids": ids, "mask": mask, "folder": folder, "prompts": prompts}


def exact_logits(model: Any, run: dict[str, Any]) -> Any:
    """The logits [T, R, vocabulary] of torch in float64, row by row, without any cache or padding."""
    model.double()
    try:
        found = []
        for history in run["histories"]:
            whole = [np.concatenate([run["prompts"][row // M][:-1], history[row]]) for row in range(R)]
            with torch.no_grad():
                found.append(torch.stack([model(torch.tensor(ids)[None]).logits[0, -1] for ids in whole]))
    finally:
        model.float()
    return torch.stack(found).numpy()


def untouched_logits(graphs: ModelGraphs, run: dict[str, Any]) -> Any:
    """Logits of the canonical graphs, the prompt in their past: row by row, for they mask no padding and no windows."""
    encoder, decoder = sessions(graphs, run["folder"])
    found = np.zeros((T, R, graphs.sizes.vocabulary), np.float32)
    for row in range(R):
        prompt = run["prompts"][row // M]
        ids = run["ids"][row // M : row // M + 1]
        kept = dict(zip([t.name for t in encoder.get_outputs()], encoder.run(None, {"input_ids": ids}), strict=True))
        past = {}
        for name in (name for name in kept if name.startswith("source.")):
            oldest = len(prompt) - graphs.window(int(name.split(".")[1])) if graphs.windows else 0
            past[name.replace("source", "past")] = kept[name][:, :, max(0, oldest) : len(prompt) - 1]
        for step, history in enumerate(run["histories"]):
            cache = past
            for place in range(step + 1):  # each row's own history from its beginning: beams move
                feeds = {"tokens": history[row : row + 1, place : place + 1], "positions": [[len(prompt) - 1 + place]]}
                logits, *present = decoder.run(None, {**feeds, **cache})
                cut = []
                for index, grown in enumerate(present):
                    window = graphs.window(index // 2)
                    cut.append(grown[:, :, -min(window - 1, grown.shape[2]) :] if window else grown)
                cache = dict(zip(cache, cut, strict=True))
            found[step, row] = logits.reshape(-1)
    return found


def logits_of(graphs: ModelGraphs, run: dict[str, Any]) -> Any:
    """Logits [T, R, vocabulary] of graphs that a plan has made."""
    encoder, decoder = sessions(graphs, run["folder"])
    feeds = {"input_ids": run["ids"], "num_beams": np.array([M])}
    outputs = encoder.run(None, {t.name: feeds[t.name] for t in encoder.get_inputs()})
    first = np.array(COUNTS, np.int32) - 1
    constant = dict(zip([t.name for t in encoder.get_outputs()], outputs, strict=True)) | {
        "attention_mask": run["mask"],
        "first_positions": first,
    }
    caches = empty_caches(graphs.decoder, R, T + 2)
    logits = []
    for step in range(T):
        positions = first.repeat(M)[:, None].astype(np.int64) + step
        found, caches = run_step(decoder, {**constant, **step_feeds(run, step), "positions": positions}, caches)
        logits.append(found)
    return np.stack(logits)


SIZES = {
    "qwen2": {"num_key_value_heads": 6, "use_sliding_window": False},  # a key bias, rotated
    "olmo2": {"num_key_value_heads": 6},  # a norm over all key heads
    # Qwen3 has one over each, and together more numbers than the model is wide.
}


@pytest.fixture(scope="module")
def known(bundles: BundleCache, run_: dict[str, Any]) -> Callable[[str], tuple[ModelGraphs, Any, Any]]:
    """Canonical graphs of a family, their logits, and those of torch in float64."""

    @functools.cache
    def made(family: str) -> tuple[ModelGraphs, Any, Any]:
        checkpoint, graphs = bundles.trace(family, **SIZES.get(family, {}))
        return graphs, untouched_logits(graphs, run_), exact_logits(checkpoint.model, run_)

    return made


def rewritten(canonical: ModelGraphs, plan: list[LayerPlan]) -> ModelGraphs:
    graphs = canonical.copy()
    for apply in passes_of(plan, one_softmax=True):
        if apply is not search_head:
            apply(graphs)
    return graphs


PLANS = [
    *[("gpt2", [kinds] * 2) for kinds in (*JOINED, ("kv-per-beam", "kv-reordered"))],
    *[("gpt_bigcode", [kinds] * 2) for kinds in (("kv", "kv"), ("states", "x"), ("kv-per-beam", "kv-reordered"))],
    *[(family, [kinds] * 2) for family in ("gpt_neox", "olmo") for kinds in itertools.product(("kv", "k"), repeat=2)],
    *[("qwen2", [kinds] * 2) for kinds in itertools.product(("kv", "k"), repeat=2)],
    ("qwen2", [("kv", "k"), ("k", "kv")]),
    *[(family, [kinds] * 2) for family in ("olmo2", "qwen3") for kinds in (("k", "kv"), ("kv", "k"), ("k", "k"))],
    *[("mistral", [kinds] * 2) for kinds in (("kv", "kv"), ("kv-per-beam", "kv-reordered"))],
    ("gpt2", [("kv-per-beam", "kv-reordered"), ("states", "x")]),
    ("gpt2", [("states", "k"), ("k", "kv")]),
    ("mistral", [("kv", "kv"), ("kv-per-beam", "kv-reordered")]),
]


@pytest.mark.parametrize(("family", "kinds"), PLANS, ids=lambda value: value if isinstance(value, str) else str(value))
def test_plan_preserves_logits(
    family: str, kinds: list[tuple[str, str]], known: Callable[[str], Any], run_: dict[str, Any]
) -> None:
    canonical, untouched, exact = known(family)
    np.testing.assert_allclose(untouched, exact, rtol=1e-4, atol=1e-4)
    plan = [LayerPlan(source, generated, "") for source, generated in kinds]
    assert_close(logits_of(rewritten(canonical, plan), run_), exact, untouched, LUCK)


def test_the_trace_holds_standard_operators_and_no_cache(known: Callable[[str], Any]) -> None:
    for family in ("gpt2", "gpt_bigcode", "gpt_neox", "gemma3_text"):
        canonical = known(family)[0]
        for graph, kind in ((canonical.encoder, "prompt"), (canonical.decoder, "self")):
            names = [node.name for node in graph.nodes if node.op == "Attention"]
            assert names == [f"{kind}.{layer}" for layer in range(canonical.sizes.L)]
            assert {node.domain for node in graph.nodes} <= {None, ""}
            assert not any(node.op in ("Split", "Slice") and "Attention" in node.name for node in graph.nodes)


def test_prompt_graph_ends_with_its_caches(known: Callable[[str], Any]) -> None:
    """Nothing behind the last layer's projections is run; both graphs read one weight for each layer's projections."""
    graphs = rewritten(known("gpt2")[0], list(same_for_all(PRESETS["dedup"], 2, "")))
    names = [f"source.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    assert [tensor.name for tensor in graphs.encoder.outputs] == names
    assert sum(node.op == "Attention" for node in graphs.encoder.nodes) == 1
    fused = [
        [t.values for node in graph.nodes if node.op in ("MatMul", "Gemm") for t in node.inputs if t.shape == (36, 108)]
        for graph in (graphs.encoder, graphs.decoder)
    ]
    assert len(fused[0]) == 2
    assert all(np.array_equal(one, other) for one, other in zip(*fused, strict=True))


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (
            ("kv", "x"),
            "source cache kv and generated cache x do not go together in a decoder-only model or one with",
        ),
        (("k", "x"), "source cache k and generated cache x do not go together .* choose generated cache kv or k"),
        (("kv", "kv-reordered"), "source cache kv and generated cache kv-reordered do not go together"),
        (("kv-per-beam", "kv"), "source cache kv-per-beam .* choose generated cache kv-reordered"),
        (("first-k", "kv"), "a decoder-only model or one with merged attention has no cache 'first-k'"),
        (("kv", "y"), "a decoder-only model or one with merged attention has no cache 'y'"),
    ],
)
def test_kinds_that_do_not_go_together_are_refused(
    kinds: tuple[str, str], reason: str, known: Callable[[str], Any]
) -> None:
    with pytest.raises(PassError, match=reason):
        rewrite(known("gpt2")[0], [LayerPlan(*kinds, "")] * 2)


def test_every_pair_of_the_table_is_tested() -> None:
    pairs = {(source, generated) for source, kinds in PROMPT_PAIRS.items() for generated in kinds}
    assert pairs == {*JOINED, ("kv-per-beam", "kv-reordered")}


def test_a_generated_cache_needs_the_prompt(known: Callable[[str], Any]) -> None:
    with pytest.raises(PassError, match="self_beam_cache: layer 0 caches nothing of the prompt"):
        self_beam_cache(known("gpt2")[0].copy())


def test_a_bias_of_rotated_keys_stays(bundles: BundleCache) -> None:
    graphs = bundles.trace("gpt_neox")[1].copy()
    assert fold_biases(graphs).matched == 2 * 2  # the values', of two layers in two graphs
    assert prompt_shared(graphs).matched == 2
