"""Draws of beam sampling against the exact distribution: of candidates without replacement, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest

from support.options import resolve_options
from support.references.warpers import torch_scores
from support.searches.chi_square import MOST, chi_square
from support.slow_cases import slow_unless
from tightbeam.deploy.errors import NonFiniteError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search import Candidates, NullCallback, StepInputs
from tightbeam.deploy.search.beam_sampling import BeamSampleSearch
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.draws import drawn_in_turn
from tightbeam.deploy.search.rows import Rows, largest

BEAMS, VOCABULARY, END = 2, 10, 3
LOGITS = np.log(np.array([[30, 20, 15, 10, 8, 7, 5, 3, 1, 1], [2, 3, 9, 1, 24, 16, 30, 5, 6, 4]], np.float32) / 100)
RUNNING = np.array([-0.4, -1.9], np.float32)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.4, "top_k": 3},
    {"top_k": 1},  # two of each row are kept in any case, so all four are drawn
    {"top_k": 0, "top_p": 0.6},
    {"top_k": 0, "top_p": 0.5, "temperature": 1.6},
    {"top_k": 5, "min_p": 0.6, "temperature": 1.3},
    {"top_k": 0, "typical_p": 0.65},
)
SEEDS, TOGETHER = 2400, 100
PLACES = (BEAMS * VOCABULARY) ** np.arange(4)[::-1]


def options_of(settings: dict[str, Any]) -> GenerationOptions:
    asked = {"do_sample": True, "num_beams": BEAMS, "max_new_tokens": 2, **settings}
    defaults = {"eos_token_id": END, "decoder_start_token_id": 0}
    return resolve_options(defaults, asked, vocab_size=VOCABULARY, max_positions=9)


class Same:
    """A decoder whose rows have the same scores in every sample, and the same ``banned`` tokens int64 [P]."""

    def __init__(self, size: int, options: GenerationOptions, banned: np.ndarray) -> None:
        self.history, self.options, self.banned = np.zeros((size, BEAMS, 3), np.int64), options, banned

    def __call__(self, inputs: StepInputs) -> Candidates:
        B, M, T = inputs.history.shape
        assert not inputs.beam_scores.any()
        C = self.options.candidates
        rows = Rows(
            logits=np.tile(LOGITS, (B, 1)),
            history=inputs.history.reshape(B * M, T),
            lengths=inputs.lengths,
            banned=np.tile(self.banned, (B * M, 1)),
            normalize=self.options.normalize,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            trie=None,
            nodes=np.zeros(B * M, np.int32),
        )
        best = [largest(rows.processed(beam), C)[:C] for beam in range(M)]
        scores = np.concatenate([rows.processed(beam)[own] for beam, own in enumerate(best)])
        beams = np.arange(M).repeat([len(own) for own in best])
        return Candidates(*(np.tile(array, (B, 1)) for array in (scores, beams, np.concatenate(best))), rows)

    def compact(self, compaction: Compaction) -> None: ...


def drawn(settings: dict[str, Any], count: int = SEEDS, banned: Sequence[int] = ()) -> Candidates:
    """The candidates of one step over many seeds."""
    options, found = options_of(settings), []
    assert options.sampling is not None
    for start in range(0, count, TOGETHER):
        seeds = range(start, min(count, start + TOGETHER))
        search = BeamSampleSearch(Same(len(seeds), options, np.array(banned, np.int64)), options, NullCallback())
        for seed in seeds:
            search.join(seed, replace(options, sampling=replace(options.sampling, seed=seed)).for_input([5, 6]))
        search.scores[:] = RUNNING
        found.append(search.run_step()[0])
    return Candidates(
        *(np.concatenate([getattr(each, name) for each in found]) for name in ("scores", "beams", "tokens"))
    )


def sets_of(found: Candidates) -> np.ndarray:
    """Counts [X X X X] of the four candidates, by beam and token, best first."""
    ids = found.beams * VOCABULARY + found.tokens
    return np.bincount(ids @ PLACES, minlength=(BEAMS * VOCABULARY) ** 4)


def exact_sets(shares: np.ndarray) -> np.ndarray:
    """The probabilities [X X X X] of four continuations that are drawn without replacement, best first."""
    found = np.zeros(len(shares) ** 4)
    for order in permutations(np.flatnonzero(shares).tolist(), 4):
        drawn_before = np.cumsum([0, *shares[list(order[:3])]])
        best_first = sorted(order, key=lambda place: (-shares[place], place))
        found[best_first @ PLACES] += np.prod(shares[list(order)] / (1 - drawn_before))
    return found


def shares_of(settings: dict[str, Any], *, beams: int = BEAMS, temperature_of_all: float = 1.0) -> np.ndarray:
    """The probabilities of all continuations, by transformers' warpers."""
    asked = {"eos_token_id": END, "num_beams": beams, **settings}
    total = np.exp((torch_scores(asked, LOGITS).astype(np.float64) + RUNNING[:, None]).reshape(-1) / temperature_of_all)
    return total / total.sum()


@pytest.mark.parametrize(
    ("settings",), slow_unless([(own,) for own in SETTINGS], lambda own: own in SETTINGS[:3]), ids=repr
)
def test_draws_follow_the_distribution_of_transformers(settings: dict[str, Any]) -> None:
    found = drawn(settings)
    assert chi_square(sets_of(found), exact_sets(shares_of(settings))) < MOST
    ids = found.beams * VOCABULARY + found.tokens
    assert all(len(set(row)) == found.scores.shape[1] == 4 for row in ids.tolist())


def test_wrong_distributions_fail_that_bound() -> None:
    counts, right = sets_of(drawn(SETTINGS[0])), shares_of(SETTINGS[0])
    by_product = np.zeros(len(right) ** 4)
    for chosen in combinations(np.flatnonzero(right).tolist(), 4):
        best_first = sorted(chosen, key=lambda place: (-right[place], place))
        by_product[best_first @ PLACES] = right[list(chosen)].prod()
    for other in (
        exact_sets(shares_of({"top_k": 3}, temperature_of_all=0.4)),
        exact_sets(shares_of({"temperature": 0.4, "top_k": 4})),
        exact_sets(shares_of({"temperature": 0.5, "top_k": 3})),
        by_product / by_product.sum(),
    ):
        assert chi_square(counts, other) > MOST


@pytest.mark.parametrize("count", [5, 4000])
def test_draws_in_turn(count: int) -> None:
    """A few places among many are drawn as often in each order as their weights say, and none twice."""
    generator, weights = np.random.default_rng(count), np.zeros(count)
    places = generator.choice(count, 4, replace=False)
    own = np.array([0.5, 0.25, 0.2, 0.05])
    weights[places] = own * 7
    found = [tuple(drawn_in_turn(weights, generator.random(4)).tolist()) for _ in range(4000)]
    orders = list(permutations(range(4)))
    shares = [
        np.prod([own[first] / own[list(order[rank:])].sum() for rank, first in enumerate(order)]) for order in orders
    ]
    counts = [found.count(tuple(places[list(order)].tolist())) for order in orders]
    assert sum(counts) == len(found) and chi_square(np.array(counts), np.array(shares)) < MOST
    assert drawn_in_turn(weights, np.full(9, 0.999999999)).tolist()[:4] and len(drawn_in_turn(weights, np.ones(9))) == 4


def test_places_without_weight_follow_the_drawn_ones() -> None:
    """The best of the rest come last, where fewer candidates have a probability than are drawn."""
    found = drawn({"top_k": 5}, 3, banned=[token for token in range(VOCABULARY) if token != 4])
    own = RUNNING + LOGITS[:, 4] - np.log(np.exp(LOGITS).sum(axis=1))
    assert sorted(found.scores[0].tolist()) == pytest.approx(sorted([*own.tolist(), -np.inf, -np.inf]))
    assert np.isneginf(found.scores[:, 2:]).all() and (found.tokens[:, :2] == 4).all()
    with pytest.raises(NonFiniteError, match="every token is banned, so that none can be drawn; ban fewer"):
        drawn({"top_k": 5}, 1, banned=range(VOCABULARY))
