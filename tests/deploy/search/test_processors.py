"""Score processors and observers: their order, and that a search needs no word of a new one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.options import resolve_options
from support.references.warpers import warpers_of
from support.searches.hashed_logits import VOCABULARY
from support.searches.hashed_step import HashedStep, options_of
from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.generation.confidence import Confidence, Measured
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.scoring import Scoring
from tightbeam.deploy.search import Candidates, SearchResult, StepInputs, new_search, processors
from tightbeam.deploy.search.callbacks import NullCallback
from tightbeam.deploy.search.processors import PROCESSORS, processors_of
from tightbeam.deploy.search.processors._forms import Ban, Forcing, RowProcessor
from tightbeam.deploy.search.processors.bans import Tokens, Words
from tightbeam.deploy.search.processors.forced_tokens import (
    MOST_CACHED,
    ForcedTokens,
    _forced_positions,
    forced_candidates,
)

MADE_FOR = {
    "no_repeat_ngrams": "NoRepeatNGramLogitsProcessor",
    "bad_words": "NoBadWordsLogitsProcessor",
    "minimum_length": "MinLengthLogitsProcessor",
    "trie": "PrefixConstrainedLogitsProcessor",
    "forced_tokens": "ForcedBOSTokenLogitsProcessor",
    "suppressed": "SuppressTokensLogitsProcessor",
    "begin_suppressed": "SuppressTokensAtBeginLogitsProcessor",
    "renormalize": "LogitNormalization",
}
ROWS = {"rows": [[5, 6], [7, 8], [9, 10]], "ends": {"2": 1.0}}


def searched(settings: dict[str, Any], step: type[HashedStep] = HashedStep, **changes: Any) -> list[SearchResult]:
    """The results of three samples of a made-up decoder that gives whole rows."""
    case = {**ROWS, "settings": {"eos_token_id": 2, "pad_token_id": 1, "max_new_tokens": 8, **settings}}
    options = replace(options_of(case), **changes)
    found: dict[int, SearchResult] = {}

    class Kept(NullCallback):
        def on_finished(self, sample: int, result: SearchResult) -> None:
            found[sample] = result

    search = new_search(step(case, options), options, Kept())
    for sample, row in enumerate(case["rows"]):
        search.join(sample, options.for_input(row), np.array(row))
        if options.aligned:
            search.align(np.full((2, 4, 3), sample, np.float32))
    while search.places:
        search.advance()
    return [found[sample] for sample in sorted(found)]


def test_the_order_is_that_of_transformers() -> None:
    settings: dict[str, Any] = {
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[7]],
        "min_length": 3,
        "eos_token_id": 2,
        "forced_bos_token_id": 4,
        "suppress_tokens": [5],
        "begin_suppress_tokens": [6],
        "renormalize_logits": True,
    }
    made = [type(processor).__name__ for processor in warpers_of(settings)]
    ours = [MADE_FOR[maker.__name__] for maker in PROCESSORS if maker.__name__ in MADE_FOR]
    assert [name for name in ours if name in made] == [name for name in made if name in ours]
    assert set(MADE_FOR.values()) - set(made) == {"PrefixConstrainedLogitsProcessor"}


def test_only_bans_behind_them_outweigh_forced_tokens() -> None:
    forced = ForcedTokens((), (2, 11), 9)
    assert processors.Processors([Tokens((11,)), forced]).forced(8) == (2, 11)
    assert processors.Processors([forced, Tokens((11,))]).forced(8) == (2,)
    assert processors.Processors([forced, Tokens((11,))]).forced(7) == ()


def test_the_cache_of_forced_tokens_is_bounded_by_bytes() -> None:
    options = resolve_options(
        {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}, {}, vocab_size=1 << 17, max_positions=9
    )
    _forced_positions.cache_clear()
    for tokens in (range(3, 9), range(3, 3 + MOST_CACHED)):
        found = forced_candidates(options, tuple(tokens), np.zeros((1, 1), np.float32))
        assert found.tokens[0, 0] == 3
    assert _forced_positions.cache_info().currsize == 1


class OddTokens(Ban):
    def at(self, length: int) -> tuple[int, ...]:
        return tuple(range(1, VOCABULARY, 2))


class SecondIsNine(Forcing):
    def only(self, length: int) -> tuple[int, ...]:
        return (9,) if length == 3 else ()


class LowestToken(RowProcessor):
    """The lower a token, the higher its score."""

    def process(self, scores: Floats, row: Ints, beginning: int) -> Floats:
        assert len(row) >= beginning == 2
        return np.where(np.isneginf(scores), scores, -np.arange(VOCABULARY, dtype=np.float32))


@pytest.fixture(params=[OddTokens, SecondIsNine, LowestToken])
def added(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """A processor that is one more entry of the tuple, and nothing else."""

    def added_processor(options: GenerationOptions, source: Ints | None) -> Any:
        return request.param()

    monkeypatch.setattr(processors, "PROCESSORS", (*PROCESSORS, added_processor))
    processors._processors_of_settings.clear()
    yield request.param
    processors._processors_of_settings.clear()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 3},
        {"do_sample": True, "top_k": 0, "seed": 1},
        {"do_sample": True, "top_k": 0, "seed": 1, "num_beams": 3},
    ],
    ids=["greedy", "beams", "sampled", "drawn beams"],
)
def test_searches_follow_a_processor_that_they_do_not_know(settings: dict[str, Any], added: type) -> None:
    for result in searched(settings):
        new = result.sequences[0, 2:]
        if added is OddTokens:
            assert not (new[new != 1] % 2).any()  # 1 is the pad token
        elif added is SecondIsNine:
            assert len(new) < 2 or new[1] == 9
        elif not settings.get("do_sample"):
            assert set(new.tolist()) == {0}


class AlignedStep(HashedStep):
    """A decoder that gives queries: of each row, its newest token."""

    def __call__(self, inputs: StepInputs) -> Candidates:
        queries = np.repeat(inputs.tokens.reshape(-1, 1, 1), 6, axis=2).reshape(-1, 2, 3).astype(np.float32)
        return replace(super().__call__(inputs), queries=queries)


SEARCHES = [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 0}, {"do_sample": True, "num_beams": 3, "top_k": 0}]


@pytest.mark.parametrize("settings", SEARCHES, ids=["greedy", "beams", "sampled", "drawn beams"])
def test_the_queries_of_a_sequence_are_those_of_its_own_rows(settings: dict[str, Any]) -> None:
    scoring = Scoring(tokens=True, alternatives=0, normalize=True, times=True)
    for sample, result in enumerate(searched(settings, AlignedStep, scoring=scoring)):
        assert result.scored.alignments is not None
        (aligned, *_) = result.scored.alignments
        length = len(aligned.queries)
        assert aligned.queries[:, 0, 0].tolist() == result.sequences[0, 1 : 1 + length].tolist()
        assert (aligned.keys == sample).all()


@pytest.mark.parametrize("settings", SEARCHES, ids=["greedy", "beams", "sampled", "drawn beams"])
def test_confidence_is_the_mean_of_the_tokens_scores(settings: dict[str, Any]) -> None:
    """A forced token among tokens that are drawn counts as certain."""
    if "do_sample" in settings:
        settings = {**settings, "seed": 2, "forced_eos_token_id": 2}
    asked = Scoring(tokens=True, alternatives=0, normalize=True)
    for result in searched(settings, measured=Measured(0, None), scoring=asked):
        assert isinstance(result.confidence, Confidence) and result.token_scores is not None
        assert result.confidence.mean_logprob == pytest.approx(float(result.token_scores.mean()), abs=1e-5)


def test_processors_are_shared_by_samples_of_equal_settings() -> None:
    options = options_of(
        {**ROWS, "settings": {"eos_token_id": 2, "pad_token_id": 1, "encoder_no_repeat_ngram_size": 2}}
    )
    assert processors_of(options, None) is processors_of(options, None)
    assert processors_of(options, np.arange(5)) is not processors_of(options, np.arange(5))


def test_banned_words_are_looked_up_by_the_last_tokens_of_each_row() -> None:
    generator = np.random.default_rng(0)
    words = {tuple(generator.integers(0, 6, generator.integers(1, 5)).tolist()) for _ in range(200)}
    ban, history = Words(words), generator.integers(0, 6, (3, 4, 9))
    found = np.concatenate([np.broadcast_to(ban.at(9), (3, 4, len(ban.at(9)))), *ban.after(history)], axis=2)
    for row, tokens in zip(history.reshape(-1, 9).tolist(), found.reshape(-1, found.shape[2]).tolist(), strict=True):
        expected = {word[-1] for word in words if tuple(row[10 - len(word) :]) == word[:-1]}
        assert set(tokens) - {-1} == expected


def test_a_step_costs_the_same_with_few_banned_words_and_many() -> None:
    generator = np.random.default_rng(0)
    history = generator.integers(0, 1000, (2, 4, 9))

    def calls(count: int) -> int:
        words = Words({tuple(row) for row in generator.integers(0, 1000, (count, 3)).tolist()})
        made = []
        sys.setprofile(lambda frame, event, argument: made.append(event))
        try:
            words.after(history)
        finally:
            sys.setprofile(None)
        return len(made)

    assert calls(50_000) <= calls(50) + 8 * 9
