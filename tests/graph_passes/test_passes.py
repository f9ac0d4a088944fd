"""Each pass alone: the graphs before against the graphs after, and both against torch in float64.

A pass may be at most twice as far from the truth as the untouched export is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
import torch

from support.bundles.cache import BundleCache
from support.passes.runs import empty_caches, random_run, run_step, sessions, step_feeds
from support.tolerance import LUCK, assert_close
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    SOURCE,
    LayerPlan,
    ModelGraphs,
    Pass,
    PassError,
    RunSize,
    passes_of,
    rewrite,
    same_for_all,
)
from tightbeam.graph_passes.caches.generated.k import self_keys
from tightbeam.graph_passes.caches.generated.kv import self_beam_cache
from tightbeam.graph_passes.caches.generated.kv_reordered import self_reordered
from tightbeam.graph_passes.caches.generated.x import self_inputs
from tightbeam.graph_passes.caches.source.first_k import cross_first_keys
from tightbeam.graph_passes.caches.source.k import cross_keys
from tightbeam.graph_passes.caches.source.kv import cross_shared
from tightbeam.graph_passes.caches.source.kv_per_beam import cross_per_beam
from tightbeam.graph_passes.caches.source.states import cross_latent
from tightbeam.graph_passes.cleanup.fold_biases import fold_biases
from tightbeam.graph_passes.cleanup.fold_residuals import fold_residuals
from tightbeam.graph_passes.cleanup.search_head import search_head
from tightbeam.graph_passes.cleanup.step_rows import step_rows
from tightbeam.graph_passes.cleanup.tie_embeddings import tie_embeddings
from tightbeam.graph_passes.model import LayerPass

KINDS = [
    *((kind.cross_pass, kind.one_matrix) for kind in SOURCE.values()),
    *((kind.self_pass, kind.one_matrix) for kind in GENERATED.values()),
]
LAYER_PASSES = [apply for apply, _ in KINDS]
OF_ONE_MATRIX = [apply for apply, one_matrix in KINDS if one_matrix is not None]

B, M, N, T = 2, 3, 9, 7
R = B * M
Array = Any
Decoded = Callable[[ModelGraphs], Array]


@pytest.fixture(scope="module")
def canonical(bundles: BundleCache) -> ModelGraphs:
    return bundles.trace("bart")[1]


@pytest.fixture(scope="module")
def run_(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One random run: sources of two lengths, tokens, and beams that are reordered at every step."""
    generator = np.random.default_rng(3)
    mask = np.ones((B, N), dtype=np.int64)
    mask[1, 4:] = 0
    run = random_run(generator, B, M, T)
    ids = generator.integers(3, 90, (B, N))
    return {**run, "ids": ids, "mask": mask, "folder": tmp_path_factory.mktemp("graphs")}


def decode(graphs: ModelGraphs, run: dict[str, Any]) -> Array:
    """Logits [T, R, vocabulary] of a whole run, whatever caches the graphs have by now."""
    encoder, decoder = sessions(graphs, run["folder"])
    by_name = {tensor.name: tensor for tensor in graphs.decoder.inputs}
    feeds = {"input_ids": run["ids"], "attention_mask": run["mask"], "num_beams": np.array([M])}
    outputs = encoder.run(None, {t.name: feeds[t.name] for t in encoder.get_inputs()})
    constant = dict(zip([t.name for t in encoder.get_outputs()], outputs, strict=True))
    constant["attention_mask"] = run["mask"]
    for name in ("encoder_hidden_states", "attention_mask"):
        if name in by_name and by_name[name].shape[0] == "R":
            constant[name] = np.repeat(constant[name], M, axis=0)
    caches = empty_caches(graphs.decoder, R, T + 2)
    logits = []
    for step in range(T):
        if "beam_index" not in by_name:
            caches = {n: c[run["rows"][step]] if n.startswith("past.") else c for n, c in caches.items()}
        feeds = {**constant, **step_feeds(run, step), "positions": np.full((R, 1), step)}
        found, caches = run_step(decoder, feeds, caches)
        logits.append(found)
    return np.stack(logits)


@pytest.fixture(scope="module")
def exact(bundles: BundleCache, run_: dict[str, Any]) -> Array:
    """The logits of torch in float64, without any cache."""
    model = bundles.trace("bart")[0].model
    model.double()
    try:
        mask = torch.tensor(run_["mask"])
        with torch.no_grad():
            states = model.get_encoder()(input_ids=torch.tensor(run_["ids"]), attention_mask=mask).last_hidden_state
            steps = [
                model(
                    encoder_outputs=(states.repeat_interleave(M, 0),),
                    attention_mask=mask.repeat_interleave(M, 0),
                    decoder_input_ids=torch.tensor(history),
                ).logits[:, -1]
                for history in run_["histories"]
            ]
    finally:
        model.float()
    return torch.stack(steps).numpy()


@pytest.fixture(scope="module")
def untouched(canonical: ModelGraphs, run_: dict[str, Any]) -> Array:
    return decode(canonical, run_)


def test_unmodified_export_matches_torch(untouched: Array, exact: Array) -> None:
    np.testing.assert_allclose(untouched, exact, rtol=1e-4, atol=1e-4)


def test_the_trace_holds_standard_attention_and_no_cache(canonical: ModelGraphs) -> None:
    sizes = canonical.sizes
    assert sum(node.op == "Attention" for node in canonical.decoder.nodes) == 2 * sizes.L
    assert {node.domain for node in canonical.decoder.nodes} <= {None, ""}
    assert canonical.decoder.opset == 23


@pytest.mark.parametrize(
    "passes",
    [
        (tie_embeddings,),
        (fold_biases,),
        (cross_per_beam,),
        (cross_shared,),
        *((fold_biases, apply) for apply in OF_ONE_MATRIX),
        (fold_biases, cross_keys, self_keys, step_rows, fold_residuals),
        (fold_biases, cross_first_keys, self_inputs, step_rows, fold_residuals),
        (self_reordered,),
        (self_beam_cache,),
        (tie_embeddings, cross_shared, self_beam_cache, step_rows),
        (fold_biases, cross_latent, self_beam_cache, step_rows),
        (fold_biases, cross_shared, self_beam_cache, step_rows, fold_residuals),
    ],
    ids=lambda passes: "-".join(apply.__name__ for apply in passes),
)
def test_passes_preserve_logits(
    passes: tuple[Pass, ...], canonical: ModelGraphs, run_: dict[str, Any], untouched: Array, exact: Array
) -> None:
    graphs = canonical.copy()
    for apply in passes:
        assert apply(graphs).matched > 0
    assert_close(decode(graphs, run_), exact, untouched)


def test_a_pass_leaves_the_graphs_it_was_not_given_as_they_were(
    canonical: ModelGraphs, run_: dict[str, Any], untouched: Array
) -> None:
    for preset in PRESETS.values():
        rewrite(canonical, same_for_all(preset, canonical.sizes.L, ""))
    np.testing.assert_array_equal(decode(canonical, run_), untouched)


def test_the_search_head_takes_the_best_of_the_logits(
    canonical: ModelGraphs, run_: dict[str, Any], untouched: Array
) -> None:
    graphs = canonical.copy()
    search_head(graphs)
    encoder, decoder = sessions(graphs, run_["folder"])
    (states,) = encoder.run(None, {"input_ids": run_["ids"], "attention_mask": run_["mask"]})
    empty = np.zeros((R, graphs.sizes.H, 0, graphs.sizes.K), dtype=np.float32)
    scores, beams, tokens, *_ = decoder.run(
        None,
        {
            "tokens": run_["histories"][0],
            "positions": np.zeros((R, 1), dtype=np.int64),
            "encoder_hidden_states": np.repeat(states, M, axis=0),
            "attention_mask": np.repeat(run_["mask"], M, axis=0),
            **{t.name: empty for t in graphs.decoder.inputs if t.name.startswith("past.")},
            "beam_scores": np.zeros((B, M), dtype=np.float32),
            "history": run_["histories"][0],
            "history_lengths": np.ones(B, dtype=np.int32),
            "banned": np.zeros((R, 0), dtype=np.int64),
            "trie_offsets": np.zeros(3, np.int32),
            "trie_tokens": np.zeros(0, np.int32),
            "trie_nodes": np.zeros(R, np.int32),
            "normalize": np.array(False),
            "repetition_penalty": np.array(1.0, dtype=np.float32),
            "no_repeat_ngram_size": np.array(0),
            "candidates": np.array([2 * M]),
        },
    )
    total = untouched[0].reshape(B, -1)
    order = np.argsort(-total, axis=1, kind="stable")[:, : 2 * M]
    np.testing.assert_array_equal(beams * graphs.sizes.vocabulary + tokens, order)
    np.testing.assert_allclose(scores, np.take_along_axis(total, order, 1), rtol=1e-6)


def test_passes_report_the_bytes_they_save(canonical: ModelGraphs) -> None:
    sizes = canonical.sizes
    run_size = RunSize(B=3, M=4, N=10, T=6)
    assert tie_embeddings(canonical.copy()).bytes_saved(run_size) == sizes.vocabulary * sizes.D * 4
    encoder_layers = sum(node.op == "Attention" for node in canonical.encoder.nodes)
    assert fold_biases(canonical.copy()).bytes_saved(run_size) == (encoder_layers + 2 * sizes.L) * 2 * sizes.D * 4
    per_beam, shared, latent = 2 * sizes.L * 4 * 10 * sizes.D, 2 * sizes.L * 10 * sizes.D, 10 * sizes.D
    assert cross_shared(canonical.copy()).bytes_saved(run_size) == 3 * 4 * (per_beam - shared)
    folded = canonical.copy()
    fold_biases(folded)
    assert cross_latent(folded).bytes_saved(run_size) == 3 * 4 * (per_beam - latent)
    assert per_beam // latent == 2 * sizes.L * run_size.M
    assert cross_per_beam(canonical.copy()).bytes_saved(run_size) == 0
    assert self_reordered(canonical.copy()).bytes_saved(run_size) == 0
    row = sizes.L * 6 * sizes.D * 4  # one number for each layer, position and feature
    assert self_beam_cache(canonical.copy()).bytes_saved(run_size) == 3 * 4 * 2 * row
    assert self_keys(folded.copy()).bytes_saved(run_size) == 3 * 4 * 3 * row
    assert self_inputs(folded.copy()).bytes_saved(run_size) == 3 * 4 * 3 * row
    folded = canonical.copy()
    fold_biases(folded)
    assert cross_keys(folded.copy()).bytes_saved(run_size) == 3 * 4 * (per_beam - shared // 2)
    assert cross_first_keys(folded.copy()).bytes_saved(run_size) == 3 * 4 * (per_beam - latent)
    assert search_head(canonical.copy()).bytes_saved(run_size) == 12 * sizes.vocabulary * 4 - 20 * 3 * 8


def test_passes_report_why_they_match_nothing(canonical: ModelGraphs) -> None:
    graphs = canonical.copy()
    fold_biases(graphs)
    again = fold_biases(graphs)
    assert (again.matched, again.reason) == (0, "no key or value projection has a bias")
    untied = canonical.copy()
    for node in untied.decoder.nodes:
        if node.op == "MatMul" and node.inputs[1].shape == (36, untied.sizes.vocabulary):
            node.inputs[1] = gs.Constant("untied", node.inputs[1].values + 1)
    result = tie_embeddings(untied)
    assert result.matched == 0
    assert result.reason == "the logits' weight is the transpose of no embedding of the decoder"


@pytest.mark.parametrize("apply", OF_ONE_MATRIX)
def test_caches_without_keys_and_values_refuse_biases(apply: LayerPass, canonical: ModelGraphs) -> None:
    with pytest.raises(PassError, match=rf"{apply.__name__}: layer 0 .* run fold_biases first"):
        apply(canonical.copy())


@pytest.mark.parametrize("apply", [cross_keys, cross_first_keys, self_keys])
def test_keys_narrower_than_the_model_are_refused(apply: LayerPass, canonical: ModelGraphs) -> None:
    graphs = canonical.copy()
    fold_biases(graphs)
    for node in graphs.decoder.nodes:
        if node.op == "MatMul" and isinstance(node.inputs[1], gs.Constant) and node.inputs[1].shape == (36, 36):
            node.inputs[1] = gs.Constant(f"{node.name}.narrow", node.inputs[1].values[:, :24])
    with pytest.raises(PassError, match=r"the keys of layer 0 have 24 numbers and are made of 36"):
        apply(graphs)


@pytest.mark.parametrize("apply", LAYER_PASSES)
def test_a_pass_names_itself_and_what_it_did_not_find(apply: LayerPass, canonical: ModelGraphs) -> None:
    with pytest.raises(PassError, match=rf"{apply.__name__}: layer 3 has no \w+-attention that is as it was traced"):
        apply(canonical.copy(), layers=[3])


def test_a_plan_for_other_layers_is_refused(canonical: ModelGraphs) -> None:
    with pytest.raises(PassError, match="the plan is for 2 layers, the model has 3"):
        rewrite(canonical, same_for_all(PRESETS["el"], 2, ""))


@pytest.mark.parametrize("seed", range(6))
def test_every_layer_may_have_other_caches(
    seed: int, canonical: ModelGraphs, run_: dict[str, Any], untouched: Array, exact: Array
) -> None:
    generator = np.random.default_rng(seed)
    shuffled = [generator.permutation(list(kinds)) for kinds in (SOURCE, GENERATED)]
    layers = range(canonical.sizes.L)
    plan = [LayerPlan(str(shuffled[0][layer]), str(shuffled[1][layer]), "") for layer in layers]
    passes = [apply for apply in passes_of(plan) if apply is not search_head]
    graphs = canonical.copy()
    for apply in passes:
        apply(graphs)
    assert_close(decode(graphs, run_), exact, untouched, LUCK)


def test_attention_of_unknown_form_is_an_error_that_names_the_node(canonical: ModelGraphs) -> None:
    graphs = canonical.copy()
    node = next(node for node in graphs.decoder.nodes if node.name == "cross.0")
    key = gs.Variable("negated")
    graphs.decoder.nodes.append(gs.Node("Neg", inputs=[node.inputs[0]], outputs=[key]))
    node.inputs[0] = key
    with pytest.raises(PassError, match=r"cross_shared: the query of .* is not a MatMul by a weight"):
        cross_shared(graphs)
    with pytest.raises(PassError, match=r"passes before: tie_embeddings"):
        rewrite(graphs, same_for_all(PRESETS["dedup"], graphs.sizes.L, ""))
