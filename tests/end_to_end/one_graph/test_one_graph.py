"""The one graph, in ONNX Runtime without our library: token for token what a runner gives."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import uses_external_data

from support.bundles.cache import BundleCache
from support.bundles.demo import demo_bundle
from support.one_graph import OneGraph
from support.references.causal_runs import runs
from support.references.generate_runs import SETTINGS, runs_of
from support.searches.chi_square import MOST, chi_square
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.search.warpers import row_weights
from tightbeam.export.one_graph.graph import one_graph
from tightbeam.graph_passes import PRESETS

Array = Any
TEXT = [("bart", variant) for variant in PRESETS] + [
    *(("mbart", "dedup"), ("marian", "el"), ("t5", "kcache"), ("prophetnet", "dedup")),
    *(("pegasus", "xcache"), ("m2m_100", "dedup"), ("longt5", "dedup"), ("led", "dedup")),
]
PROMPTED = [
    *(("gpt2", "dedup"), ("gpt2", "el"), ("llama", "dedup"), ("gemma2", "kcache"), ("bloom", "baseline")),
    *(("gpt_neox", "kcache"), ("olmo", "kcache"), ("mistral", "dedup"), ("falcon", "dedup")),
]
PAD = 1
CLOSE = 1e-4
"""Largest difference of a score per unit; rounding made 3e-6, and a wrong rule changes tokens."""


def expect_same(graph: OneGraph, runner: Runner, ids: Array, mask: Array, settings: dict[str, Any]) -> None:
    """The same sequences, and the same scores but for rounding."""
    found = graph.generate({"input_ids": ids, "attention_mask": mask}, **settings)
    expected = runner.generate(ids, mask, **settings)
    np.testing.assert_array_equal(found.sequences, expected.sequences, err_msg=str(settings))
    if expected.scores is not None:
        np.testing.assert_allclose(found.scores, expected.scores, rtol=CLOSE, atol=CLOSE, err_msg=str(settings))
    given = 1 if not runner.manifest.sizes.decoder_only else ids.shape[1]
    assert ((found.lengths >= given) & (found.lengths <= found.sequences.shape[1])).all()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "variant"), TEXT)
def test_an_encoder_decoder_gives_the_runners_tokens(bundles: BundleCache, family: str, variant: str) -> None:
    runner, graph = Runner.load(bundles(variant, family), threads=1), OneGraph(bundles(variant, family))
    for ids, mask, settings in runs_of(runner, SETTINGS):
        ids = np.where(mask, ids, ids[:, :1])  # a runner bans n-grams in padding too, as transformers does
        expect_same(graph, runner, ids, mask, settings)


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(PROMPTED, lambda family, variant: (family, variant) == ("gpt2", "dedup")),
)
def test_a_decoder_only_model_gives_the_runners_tokens(bundles: BundleCache, family: str, variant: str) -> None:
    """Prompts of mixed lengths are padded on the left, and counted as ``generate`` counts padding."""
    runner, graph = Runner.load(bundles(variant, family), threads=1), OneGraph(bundles(variant, family))
    for ids, mask, settings in runs():
        expect_same(graph, runner, ids, mask, settings)


def test_the_padding_of_a_prompt_may_stand_behind_it(bundles: BundleCache) -> None:
    runner, graph = Runner.load(bundles("dedup", "gpt2"), threads=1), OneGraph(bundles("dedup", "gpt2"))
    ids = np.random.default_rng(0).integers(3, runner.manifest.sizes.vocabulary, (3, 9))
    mask = (np.arange(9) < [[2], [9], [5]]).astype(np.int64)
    for settings in ({"num_beams": 3}, {"num_beams": 1, "no_repeat_ngram_size": 2}):
        expect_same(graph, runner, ids, mask, {"max_new_tokens": 12, **settings})


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runner, OneGraph]:
    """The demo model's runner and graph."""
    path = demo_bundle(tmp_path_factory.mktemp("one-graph") / "demo", "el")
    return Runner.load(path, threads=1), OneGraph(path)


def random_settings(generator: np.random.Generator) -> dict[str, Any]:
    """Settings of a search, at random."""
    M = int(generator.integers(1, 6))
    settings: dict[str, Any] = {
        "num_beams": M,
        "max_new_tokens": int(generator.integers(1, 30)),
        "no_repeat_ngram_size": int(generator.choice([0, 1, 2, 3])),
        "repetition_penalty": float(generator.choice([1.0, 1.3, 0.8])),
        "num_return_sequences": int(generator.integers(1, M + 1)),
    }
    if generator.random() < 0.4:
        settings["min_new_tokens"] = int(generator.integers(1, settings["max_new_tokens"] + 1))
    if M > 1:
        settings["length_penalty"] = float(generator.choice([1.0, 0.6, 2.0, -1.0, 0.0]))
        settings["early_stopping"] = [False, True, "never"][generator.integers(3)]
    return settings


def random_sources(generator: np.random.Generator, vocabulary: int) -> tuple[Array, Array]:
    """Sources of mixed lengths."""
    lengths = generator.integers(1, 40, generator.integers(1, 4))
    ids = generator.integers(4, vocabulary, (len(lengths), lengths.max()))
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    return np.where(mask, ids, 1), mask


def test_the_demo_model_gives_the_runners_tokens_under_any_settings(demo: tuple[Runner, OneGraph]) -> None:
    runner, graph = demo
    generator = np.random.default_rng(0)
    for _ in range(40):
        ids, mask = random_sources(generator, runner.manifest.sizes.source_vocabulary)
        expect_same(graph, runner, ids, mask, random_settings(generator))


@pytest.mark.parametrize("size", [1, 2, 40])
def test_ngrams_of_the_source_are_banned(demo: tuple[Runner, OneGraph], size: int) -> None:
    """Each sample's own ones, without those that reach into padding; a source may be shorter than one."""
    runner, graph = demo
    ids, mask = random_sources(np.random.default_rng(3), runner.manifest.sizes.source_vocabulary)
    for search in ({"max_new_tokens": 20}, {"max_new_tokens": 20, "num_beams": 3}):
        likely = runner.generate(ids, mask, **search).sequences[:, 1:]
        settings = {**search, "encoder_no_repeat_ngram_size": size}
        expect_same(graph, runner, likely, (likely != PAD).astype(np.int64), settings)
        without = runner.generate(likely, (likely != PAD).astype(np.int64), **search).sequences
        found = runner.generate(likely, (likely != PAD).astype(np.int64), **settings).sequences
        assert np.array_equal(found, without) == (size == 40)


@pytest.mark.parametrize(
    "variant", ["kcache", *(pytest.param(each, marks=pytest.mark.slow) for each in ("dedup", "xcache"))]
)
def test_with_our_library_caches_stay_in_place(bundles: BundleCache, variant: str) -> None:
    """All caches have the same size, so that a runtime which took two of them for one would give other tokens."""
    path = bundles(variant, "bart")
    runner, graph = Runner.load(path, threads=1), OneGraph(path, library=True)
    for ids, mask, settings in list(runs_of(runner, SETTINGS))[5:8]:
        expect_same(graph, runner, ids, mask, settings)


@pytest.mark.parametrize(
    "library", [pytest.param(False, id="functions", marks=pytest.mark.slow), pytest.param(True, id="library")]
)
@pytest.mark.parametrize(("precision", "screened"), [("int8", False), ("fp32", True)], ids=["int8", "screened"])
def test_a_decoder_that_leaves_logits_out_gives_the_runners_tokens(
    tmp_path: Path, precision: str, screened: bool, library: bool
) -> None:
    """Draws read whole rows of logits, and so ask for them; a search over beams does not."""
    path = demo_bundle(tmp_path / "demo", "dedup", precision, screened=screened)
    runner, graph = Runner.load(path, threads=1), OneGraph(path, library=library)
    generator = np.random.default_rng(1)
    for _ in range(5):
        ids, mask = random_sources(generator, runner.manifest.sizes.source_vocabulary)
        expect_same(graph, runner, ids, mask, random_settings(generator))
    drawn = {"num_beams": 1, "temperature": 0.01, "top_k": 0, "seed": 3, "max_new_tokens": 9}  # almost surely the best
    found = graph.generate({"input_ids": ids, "attention_mask": mask}, **drawn)
    expected = graph.generate({"input_ids": ids, "attention_mask": mask}, num_beams=1, max_new_tokens=9)
    np.testing.assert_array_equal(found.sequences, expected.sequences)


def test_weights_stand_outside_the_loop(demo: tuple[Runner, OneGraph]) -> None:
    """ONNX Runtime in a browser has no file system, and refuses weights of a file inside a loop."""
    bundle = demo[1].bundle
    decoder = onnx.load(bundle.file(bundle.manifest.decoder), load_external_data=False)
    graph = one_graph(
        bundle.manifest, onnx.load(bundle.file(bundle.manifest.encoder), load_external_data=False), decoder
    )
    (loop,) = [node for node in graph.graph.node if node.op_type == "Loop"]
    assert not [each.name for each in loop.attribute[0].g.initializer if uses_external_data(each)]
    assert sum(map(uses_external_data, graph.graph.initializer)) > sum(
        map(uses_external_data, decoder.graph.initializer)
    )


def test_neighbours_change_nothing(demo: tuple[Runner, OneGraph]) -> None:
    """Neither a search nor draws depend on the batch, or on padding behind a source."""
    runner, graph = demo
    ids, mask = random_sources(np.random.default_rng(5), runner.manifest.sizes.source_vocabulary)
    for settings in (
        {"num_beams": 4},
        {"num_beams": 1, "temperature": 1.0, "seed": 3, "num_return_sequences": 2},
        {"num_beams": 3, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "seed": 9},
    ):
        together = graph.generate({"input_ids": ids, "attention_mask": mask}, **settings)
        returned = len(together.sequences) // len(ids)
        for index, length in enumerate(mask.sum(axis=1)):
            alone = graph.generate(
                {"input_ids": ids[index : index + 1, :length], "attention_mask": mask[index : index + 1, :length]},
                **settings,
            )
            for row in range(returned):
                count = alone.lengths[row]
                assert together.lengths[index * returned + row] == count
                own = together.sequences[index * returned + row, :count]
                np.testing.assert_array_equal(own, alone.sequences[row, :count])


def first_tokens(graph: OneGraph, source: dict[str, Array], count: int, **settings: Any) -> Array:
    """The first drawn token of many sequences of one source."""
    found = graph.generate(source, num_beams=1, max_new_tokens=1, num_return_sequences=count, **settings)
    return found.sequences[:, -1]


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 5},
        {"top_k": 0, "top_p": 0.8, "min_p": 0.05},
        pytest.param({"top_k": 0, "temperature": 0.7}, marks=pytest.mark.slow),
    ],
)
def test_draws_have_the_distribution_of_the_scores(bundles: BundleCache, settings: dict[str, Any]) -> None:
    """The share of each token among 2,000 draws is its probability, within four standard deviations."""
    runner, graph = Runner.load(bundles("dedup", "t5"), threads=1), OneGraph(bundles("dedup", "t5"))
    settings = {"temperature": 1.3, "seed": 11, **settings}
    ids, mask = np.array([[40, 41, 42, 43]]), np.ones((1, 4), np.int64)
    count = 2000
    drawn = first_tokens(graph, {"input_ids": ids, "attention_mask": mask}, count, **settings)
    probabilities = _probabilities(runner, ids, mask, settings)
    assert probabilities.max() < 0.5
    for token in np.union1d(np.flatnonzero(probabilities > 1e-3), drawn):
        share, expected_share = (drawn == token).mean(), probabilities[token]
        assert abs(share - expected_share) <= 4 * np.sqrt(expected_share * (1 - expected_share) / count) + 1e-3, token


def test_beams_are_drawn_best_first(bundles: BundleCache) -> None:
    """With one new token, the best of the four continuations that two beams draw is returned."""
    runner, graph = Runner.load(bundles("dedup", "t5"), threads=1), OneGraph(bundles("dedup", "t5"))
    ids, mask = np.array([[40, 41, 42, 43]]), np.ones((1, 4), np.int64)
    settings = {"top_k": 6, "temperature": 3.0}
    probabilities = _probabilities(runner, ids, mask, settings)
    assert np.count_nonzero(probabilities) == 6
    expected = np.zeros(len(probabilities))
    for order in permutations(np.flatnonzero(probabilities).tolist(), 4):
        own = probabilities[list(order)]
        expected[max(order, key=lambda token: probabilities[token])] += np.prod(own / (1 - np.cumsum([0, *own[:3]])))
    asked = {"num_beams": 2, "max_new_tokens": 1, **settings}
    source = {"input_ids": ids, "attention_mask": mask}
    drawn = [graph.generate(source, seed=seed, **asked).sequences[0, -1] for seed in range(600)]
    counts = np.bincount(drawn, minlength=len(expected))
    assert chi_square(counts, expected) < MOST
    again = [runner.generate(ids, mask, do_sample=True, seed=seed, **asked).sequences[0, -1] for seed in range(600)]
    assert chi_square(np.bincount(again, minlength=len(expected)), expected) < MOST


def _probabilities(runner: Runner, ids: Array, mask: Array, settings: dict[str, Any]) -> Array:
    """The probabilities [vocabulary] of the first token by the rule of a runner's draws."""
    scores = np.full(runner.manifest.sizes.vocabulary, -np.inf, np.float32)
    best = runner.generate(
        *(ids, mask),
        **{"num_beams": 1, "max_new_tokens": 1, "return_token_scores": True},
        return_alternatives=len(scores),
    )
    alternatives = best.alternatives
    scores[alternatives.tokens[0, 0]] = alternatives.scores[0, 0]
    asked = {name: value for name, value in settings.items() if name != "seed"}
    weights, tokens = row_weights(scores, Sampling(**{"top_k": 0, **asked}))
    found = np.zeros(len(scores))
    found[np.arange(len(scores)) if tokens is None else tokens] = weights
    return found / found.sum()
