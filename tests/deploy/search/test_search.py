"""The search against `model.generate` of transformers, token for token, on tiny random BART models.

The decoder graph is played by `ReferenceStep`: the torch model run over the whole history, and the search head in
numpy. `generate` itself works with a cache, and picks among equal scores as torch.topk happens to; where a case makes
equal scores on purpose, the fixture `lower_index_first` gives torch.topk the rule that the search states.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig
from transformers.generation.logits_process import EncoderNoRepeatNGramLogitsProcessor

from support.options import resolve_options
from support.references.kept import kept
from support.searches.driver import search
from support.slow_cases import slow_unless
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search import Candidates, NullCallback, StepInputs
from tightbeam.deploy.search.beam import BeamSearch
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.processors import processors_of
from tightbeam.deploy.search.processors.forced_tokens import forced_candidates

VOCABULARY, POSITIONS, EOS, PAD, START = 37, 40, 2, 1, 3
BASE: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": PAD, "decoder_start_token_id": START}
MODELS = {"often": (3, 3.5), "sometimes": (12, 3.5), "never": (7, -1e4)}
"""Frequency of early ends: the seed of the weights and the bias of the end-of-sequence tokens."""
MODELS_IN_TURN = slow_unless([(eos,) for eos in MODELS], lambda eos: eos == "often")
"""``make slow`` runs each setting with all of them; ``make test`` runs random mixtures of settings with all."""


@functools.cache
def tiny_bart(eos: str) -> BartForConditionalGeneration:
    """Spread weights, so that hardly any two scores are near each other, and an end that comes often or never."""
    seed, eos_bias = MODELS[eos]
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,  # tied, a token makes itself likely and rows repeat it for ever
    )
    model = BartForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # The tokens must count for more than what is made of them, or all rows would be alike.
            scale = 1.0 if "embed" in name or "shared" in name or "lm_head" in name else 0.15
            parameter.add_(scale * torch.randn_like(parameter))
        model.final_logits_bias.copy_(torch.randn(1, VOCABULARY))
        model.final_logits_bias[0, [EOS, 5, 7]] += torch.tensor([1.0, 0.5, 0.5]) * eos_bias
    return model


@functools.cache
def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask int64 [B, N], mixed lengths, padded on the right."""
    random_ids = torch.Generator().manual_seed(size)
    ids = torch.randint(4, VOCABULARY, (size, 9), generator=random_ids)
    lengths = torch.randint(2, 10, (size, 1), generator=random_ids)
    mask = (torch.arange(9) < lengths).long()
    return torch.where(mask == 1, ids, PAD), mask


class ReferenceStep:
    """The decoder without a cache, with checks of the step inputs."""

    def __init__(self, model: BartForConditionalGeneration, size: int, options: GenerationOptions) -> None:
        self.model, self.options = model, options
        self.ids, self.mask = batch(size)
        with torch.no_grad():
            self.states = model.get_encoder()(self.ids, attention_mask=self.mask).last_hidden_state  # [B, N, D]
        self.history = np.zeros((size, options.num_beams, options.max_length - 1), np.int64)
        self.before: np.ndarray | None = None
        self.samples_per_call: list[int] = []

    def __call__(self, inputs: StepInputs) -> Candidates:
        B, M, T = inputs.history.shape
        self.check_contract(inputs)
        self.samples_per_call.append(B)
        with torch.no_grad():
            logits = self.model(
                encoder_outputs=(self.states.repeat_interleave(M, 0),),
                attention_mask=self.mask.repeat_interleave(M, 0),
                decoder_input_ids=torch.from_numpy(np.ascontiguousarray(inputs.history)).reshape(B * M, T),
                use_cache=False,
            ).logits[:, -1]
        return head(logits.numpy(), inputs, self.options)

    def compact(self, compaction: Compaction) -> None:
        assert 0 < compaction.remaining < len(self.ids)
        assert self.before is not None
        self.ids, self.mask, self.states = (
            torch.from_numpy(compaction.apply(tensor.numpy().copy())) for tensor in (self.ids, self.mask, self.states)
        )
        self.history, self.before = compaction.apply(self.history), compaction.apply(self.before)

    def check_contract(self, inputs: StepInputs) -> None:
        B, M, T = inputs.history.shape
        assert (len(self.ids), self.options.num_beams, len(self.samples_per_call) + 1) == (B, M, T)
        assert np.shares_memory(inputs.history, self.history)
        assert ((self.history >= 0) & (self.history < VOCABULARY)).all()
        assert inputs.tokens.shape == inputs.parents.shape == inputs.beam_scores.shape == (B, M)
        assert inputs.banned.shape[:2] == (B, M)
        assert inputs.beam_scores.dtype == np.float32
        assert {a.dtype for a in (inputs.tokens, inputs.history, inputs.parents, inputs.banned)} == {np.dtype(np.int64)}
        np.testing.assert_array_equal(inputs.tokens, inputs.history[:, :, -1])
        if self.before is None:
            np.testing.assert_array_equal(inputs.parents, np.tile(np.arange(M), (B, 1)))
        else:
            parents = inputs.parents[:, :, None]
            np.testing.assert_array_equal(np.take_along_axis(self.before, parents, 1), inputs.history[:, :, :-1])
        self.before = inputs.history.copy()


def head(logits: np.ndarray, inputs: StepInputs, options: GenerationOptions) -> Candidates:
    """The search head: logits float32 [R, vocabulary] -> the C best of each sample."""
    B, M, T = inputs.history.shape
    history, banned = inputs.history.reshape(B * M, T), inputs.banned.reshape(B * M, -1)
    scores = logits.astype(np.float32)
    if options.normalize:
        scores = scores - scores.max(1, keepdims=True)
        scores = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    if options.repetition_penalty != 1.0:
        seen = np.take_along_axis(scores, history, 1)
        penalty = np.float32(options.repetition_penalty)
        np.put_along_axis(scores, history, np.where(seen < 0, seen * penalty, seen / penalty), 1)
    n = options.no_repeat_ngram_size
    for row, tokens in enumerate(history.tolist()):
        for i in range(len(tokens) - n + 1 if n else 0):
            if tokens[i : i + n - 1] == tokens[len(tokens) - n + 1 :]:
                scores[row, tokens[i + n - 1]] = -np.inf
        scores[row, banned[row][banned[row] >= 0]] = -np.inf
    flat = (inputs.beam_scores[:, :, None] + scores.reshape(B, M, -1)).reshape(B, -1)
    order = np.argsort(-flat, axis=1, kind="stable")[:, : options.candidates]
    return Candidates(np.take_along_axis(flat, order, 1), order // VOCABULARY, order % VOCABULARY)


def check(
    eos: str,
    size: int,
    overrides: dict[str, Any],
    defaults: dict[str, Any] | None = None,
    after_start: tuple[int, ...] = (),
) -> np.ndarray:
    """Compare one generation; returns its sequences."""
    prompt = {"decoder_input_ids": torch.tensor([[START, *after_start]] * size)} if after_start else {}
    model, (ids, mask) = tiny_bart(eos), batch(size)
    defaults = {**BASE, **(defaults or {})}

    def generated() -> tuple[np.ndarray, np.ndarray | None]:
        found = model.generate(
            ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **overrides, **prompt
        )
        return found.sequences.numpy(), found.sequences_scores.numpy() if "sequences_scores" in found else None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns of lengths that do not fit together, then generates
        model.generation_config = GenerationConfig(**defaults)
        sequences, scores = kept(generated, model, "search", size, overrides, after_start, torch.topk.__qualname__)
    options = resolve_options(
        defaults, overrides, vocab_size=VOCABULARY, max_positions=POSITIONS, after_start=after_start
    )
    result = search(ReferenceStep(model, size, options), options, size, sources=ids.numpy())
    np.testing.assert_array_equal(result.sequences, sequences)
    assert result.sequences.dtype == np.int64
    if options.num_beams == 1:
        assert result.scores is None
    else:
        assert result.scores is not None and scores is not None
        assert result.scores.dtype == np.float32
        np.testing.assert_allclose(result.scores, scores, rtol=1e-5, atol=1e-5)
    return result.sequences


@pytest.fixture
def lower_index_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.topk takes an arbitrary one of equal scores; here the first."""

    def topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = torch.sort(scores, dim=-1, descending=True, stable=True)
        return values[..., :k], indices[..., :k]

    monkeypatch.setattr(torch, "topk", topk)


@functools.cache
def liked(eos: str) -> tuple[list[int], ...]:
    """Two- and three-token pieces of the model's own output, so that banning them matters."""
    options = resolve_options(BASE, {"num_beams": 4}, vocab_size=VOCABULARY, max_positions=POSITIONS)
    rows = search(ReferenceStep(tiny_bart(eos), 3, options), options, 3).sequences.tolist()
    return tuple(row[i : i + n] for row in rows for n in (2, 3) for i in range(len(row) - n))


@pytest.mark.parametrize("eos", MODELS)
@pytest.mark.parametrize("num_beams", range(1, 9))
def test_every_number_of_beams(eos: str, num_beams: int) -> None:
    check(eos, 3, {"num_beams": num_beams, "max_new_tokens": 14})
    check(eos, 1, {"num_beams": num_beams, "num_return_sequences": num_beams})


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("eos", MODELS)
def test_length_penalty_and_early_stopping(eos: str, length_penalty: float, early_stopping: bool | str) -> None:
    asked = {"length_penalty": length_penalty, "early_stopping": early_stopping, "num_beams": 4}
    check(eos, 3, {**asked, "num_return_sequences": 3, "max_length": 18})


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"min_length": 7},
        {"min_new_tokens": 6, "max_new_tokens": 9},
        {"min_length": 30, "max_length": 12},
        {"min_new_tokens": 2, "min_length": 11},
        {"max_length": 2},
        {"max_new_tokens": 1},
        {"max_length": 9, "max_new_tokens": 12},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3, "max_length": 30},
        {"no_repeat_ngram_size": 4, "max_length": 30},
        {"no_repeat_ngram_size": 9, "max_length": 6},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_no_repeat_ngram_size": 2, "no_repeat_ngram_size": 1},
        {"repetition_penalty": 0.8},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "suppress_tokens": [4, 11, 30]},
        {"forced_bos_token_id": 0},
        {"forced_bos_token_id": 0, "suppress_tokens": [1, 8]},
        {"forced_eos_token_id": EOS, "max_length": 6},
        {"forced_eos_token_id": [EOS], "forced_bos_token_id": 0, "max_length": 4},
        {"forced_eos_token_id": [EOS, 5], "suppress_tokens": [EOS], "max_length": 7},
        {"forced_eos_token_id": 9, "max_length": 5},
        {"eos_token_id": [EOS, 5]},
        {"eos_token_id": [EOS, 5, 7], "min_length": 4},
        {"eos_token_id": [EOS, EOS]},
        {"eos_token_id": [5, EOS], "pad_token_id": 0},
        {"pad_token_id": 0},
        {"pad_token_id": EOS},
        {"bad_words_ids": [[9], [10]]},
        {"bad_words_ids": [[EOS], [9]]},
        {"bad_words_ids": [[EOS, 9], [START, EOS], [9, EOS]]},
        {"suppress_tokens": [EOS, 9, 10]},
        {"suppress_tokens": []},
        {"begin_suppress_tokens": [EOS, 9, 10, 11]},
        {"begin_suppress_tokens": [EOS, 9, 10, 11], "forced_bos_token_id": 0},
        {"decoder_start_token_id": EOS, "no_repeat_ngram_size": 1},
    ],
    ids=repr,
)
@pytest.mark.parametrize(("eos",), MODELS_IN_TURN)
def test_each_setting_alone(asked: dict[str, Any], num_beams: int, eos: str) -> None:
    check(eos, 3, {**asked, "num_beams": num_beams})
    check(eos, 2, {"num_beams": num_beams, "num_return_sequences": num_beams}, defaults=asked)


@pytest.mark.parametrize("num_beams", [1, 2, 4])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"max_new_tokens": 5, "min_new_tokens": 3},
        {"max_length": 9, "min_length": 7},
        {"length_penalty": 2.0, "early_stopping": True},
        {"length_penalty": -1.5, "early_stopping": "never"},
        {"length_penalty": 0.7, "early_stopping": "never"},
        {"begin_suppress_tokens": [EOS, 9, 10, 11], "forced_bos_token_id": 0},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
        {"bad_words_ids": [[9, 4], [10]], "forced_eos_token_id": 9, "max_new_tokens": 4},
    ],
    ids=repr,
)
@pytest.mark.parametrize(("eos",), MODELS_IN_TURN)
def test_search_with_a_decoder_prompt(asked: dict[str, Any], num_beams: int, eos: str) -> None:
    check(eos, 3, {**asked, "num_beams": num_beams}, after_start=(9,))
    check(eos, 2, {**asked, "num_beams": num_beams, "num_return_sequences": num_beams}, after_start=(5, 12, 9))


@pytest.mark.usefixtures("lower_index_first")
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("max_length", [2, 3])
def test_nothing_but_forced_tokens(num_beams: int, max_length: int) -> None:
    """All beams but the first are out then, so the sequences after the best one are a choice among equals."""
    asked = {"forced_eos_token_id": EOS, "forced_bos_token_id": 0, "max_length": max_length}
    check("often", 2, {**asked, "num_beams": num_beams, "num_return_sequences": num_beams})
    asked = {"forced_eos_token_id": [EOS, 9], "begin_suppress_tokens": [9], "max_length": max_length}
    check("often", 2, {**asked, "num_beams": num_beams, "num_return_sequences": num_beams})


@pytest.mark.parametrize("num_beams", [1, 5])
@pytest.mark.parametrize("eos", MODELS)
def test_bad_words_of_several_tokens(eos: str, num_beams: int) -> None:
    free = check(eos, 3, {"num_beams": num_beams})
    words = [row[i : i + n] for row in free.tolist() for n, i in ((2, 1), (3, 2), (4, 0)) if len(row) >= i + n]
    banned = check(eos, 3, {"num_beams": num_beams, "bad_words_ids": [*words, [9], [4, 4, 4, 4, 4, 4, 4]]})
    assert not np.array_equal(free, banned)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("missing", [{"eos_token_id"}, {"pad_token_id"}, {"eos_token_id", "pad_token_id"}])
def test_missing_special_tokens(monkeypatch: pytest.MonkeyPatch, missing: set[str], num_beams: int) -> None:
    monkeypatch.setitem(globals(), "BASE", {name: value for name, value in BASE.items() if name not in missing})
    for eos in MODELS:
        check(eos, 3, {"num_beams": num_beams, "min_length": 3})


def test_sequences_really_end_early_and_at_different_lengths() -> None:
    for asked in ({"num_beams": 1}, {"num_beams": 4, "early_stopping": True}):
        sequences = check("often", 3, {**asked, "max_length": 30})
        ends = (sequences == EOS).argmax(axis=1)
        assert len(set(ends.tolist())) > 1
        assert sequences.shape[1] == 1 + ends.max() < 30
        assert check("never", 3, {**asked, "max_length": 30}).shape[1] == 30


def random_settings(rng: random.Random, eos: str) -> dict[str, Any]:
    """Any mixture of everything, without equal scores: enough tokens stay allowed, one token at most is forced."""
    num_beams = rng.randint(1, 8)
    offers: dict[str, Any] = {
        "num_return_sequences": rng.randint(1, num_beams),
        "length_penalty": rng.choice([-1.0, 0.0, 0.5, 2.0]),
        "early_stopping": rng.choice([True, False, "never"]),
        "min_length": rng.randint(0, 12),
        "min_new_tokens": rng.randint(0, 12),
        "max_length": rng.randint(3, 20),
        "max_new_tokens": rng.randint(2, 20),
        "no_repeat_ngram_size": rng.randint(0, 4),
        "repetition_penalty": rng.choice([0.8, 1.0, 1.3]),
        "forced_bos_token_id": rng.choice([0, 6]),
        "forced_eos_token_id": rng.choice([EOS, [EOS], 9]),
        "eos_token_id": rng.choice([[EOS, 5], [5, EOS], EOS]),
        "pad_token_id": rng.choice([0, PAD, EOS]),
        "bad_words_ids": [*rng.sample(liked(eos), 4), [rng.randint(4, 36)], [EOS]],
        "suppress_tokens": rng.sample(range(10, 37), rng.randint(0, 3)),
        "decoder_start_token_id": rng.choice([EOS, START]),
    }
    return {"num_beams": num_beams, **{name: value for name, value in offers.items() if rng.random() < 0.4}}


@pytest.mark.parametrize(("block",), slow_unless([(block,) for block in range(10)], lambda block: block < 3))
def test_random_mixtures(block: int) -> None:
    for seed in range(18 * block, 18 * (block + 1)):
        rng = random.Random(seed)
        eos = rng.choice(list(MODELS))
        asked = random_settings(rng, eos)
        movable = [name for name in asked if name != "num_return_sequences"]
        defaults = {name: asked.pop(name) for name in movable if rng.random() < 0.4}
        try:
            check(eos, rng.randint(1, 4), asked, defaults)
        except AssertionError as error:
            error.add_note(f"seed {seed}: {eos=} {asked=} {defaults=}")
            raise


few_tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4, unique=True)


@pytest.mark.usefixtures("lower_index_first")
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    eos=st.sampled_from(sorted(MODELS)),
    size=st.integers(1, 3),
    allowed=st.lists(st.integers(0, VOCABULARY - 1), min_size=0, max_size=9),
    asked=st.fixed_dictionaries(
        {"num_beams": st.integers(1, 8), "max_length": st.integers(2, 12)},
        optional={
            "forced_bos_token_id": st.sampled_from([EOS, 0, 9]),
            "forced_eos_token_id": few_tokens,
            "eos_token_id": st.lists(st.sampled_from([EOS, 5, 7]), min_size=1, max_size=3, unique=True),
            "no_repeat_ngram_size": st.integers(1, 2),
            "repetition_penalty": st.sampled_from([0.5, 3.0]),
            "min_length": st.integers(0, 12),
            "early_stopping": st.sampled_from([True, "never"]),
            "length_penalty": st.sampled_from([-1.0, 2.0]),
        },
    ),
)
def test_equal_scores_and_too_few_tokens(eos: str, size: int, allowed: list[int], asked: dict[str, Any]) -> None:
    """Bans that leave fewer tokens than beams, down to none, and forced tokens that tie."""
    suppressed = sorted(set(range(VOCABULARY)) - set(allowed))
    forced = asked.get("forced_eos_token_id", [])
    kept = {asked.get("forced_bos_token_id", -1), *forced[:1]}  # a token both forced and suppressed is refused
    asked = {**asked, "suppress_tokens": [token for token in suppressed if token not in kept]}
    check(eos, size, {**asked, "num_return_sequences": asked["num_beams"]})


def options_with(**asked: Any) -> GenerationOptions:
    return resolve_options(BASE, asked, vocab_size=VOCABULARY, max_positions=POSITIONS)


def test_banned_tokens_of_each_row() -> None:
    words = [[9], [4, 6], [8, 6], [5, 4, 7], [EOS]]
    bans = processors_of(options_with(bad_words_ids=words, min_length=3, suppress_tokens=[11]), None)
    history = np.array([[[5, 4], [3, 8]], [[4, 5], [3, 3]]])  # [B, M, T]
    rows = [sorted(set(row) - {-1}) for row in bans.banned(history).reshape(4, -1).tolist()]
    assert rows == [[2, 6, 7, 9, 11], [2, 6, 9, 11], [2, 9, 11], [2, 9, 11]]
    longer = np.concatenate([np.full((2, 2, 1), 3), history], axis=2)
    rows = [sorted(set(row) - {-1}) for row in bans.banned(longer).reshape(4, -1).tolist()]
    assert rows == [[6, 7, 9, 11], [6, 9, 11], [9, 11], [9, 11]]
    assert processors_of(options_with(), None).banned(history).shape == (2, 2, 0)


@pytest.mark.parametrize("n", [1, 2, 3, 12])
def test_ngrams_of_the_source_are_banned(n: int) -> None:
    generator = np.random.default_rng(n)
    options = options_with(num_beams=2, encoder_no_repeat_ngram_size=n, bad_words_ids=[[EOS]])
    seen = 0
    for length in (1, 2, 3, 7):
        source, history = generator.integers(0, 4, 11), generator.integers(0, 4, (2, length))
        reference = EncoderNoRepeatNGramLogitsProcessor(n, torch.from_numpy(source)[None])
        scores = reference(torch.from_numpy(history), torch.zeros(2, VOCABULARY)).numpy()
        expected = [set(np.flatnonzero(row == -np.inf).tolist()) for row in scores]
        found = processors_of(options, source).banned(history[None])[0]
        assert [set(row) - {-1} for row in found.tolist()] == expected
        seen += sum(map(len, expected))
    assert (seen > 0) == (n < 12)
    assert processors_of(options, None) is processors_of(options, None)


@given(st.integers(1, 6), few_tokens, st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_forced_candidates_are_the_best_of_the_whole_vocabulary(num_beams: int, tokens: list[int], seed: int) -> None:
    options = options_with(num_beams=num_beams)
    beam_scores = np.random.default_rng(seed).choice(np.array([0, -1, -1e9, -np.inf], np.float32), (3, num_beams))
    scores = np.full((3, num_beams, VOCABULARY), -np.inf, np.float32)
    scores[:, :, tokens] = beam_scores[:, :, None]
    flat = scores.reshape(3, -1)
    order = np.argsort(-flat, axis=1, kind="stable")[:, : options.candidates]
    found = forced_candidates(options, tuple(tokens), beam_scores)
    np.testing.assert_array_equal(found.beams * VOCABULARY + found.tokens, order)
    np.testing.assert_array_equal(found.scores, np.take_along_axis(flat, order, 1))
    assert found.scores.dtype == np.float32


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "max_length", "worst", "hopeful"),
    [
        ("never", 2.0, 5, -0.98, False),  # at best -16 / 4 ** 2 = -1
        ("never", 2.0, 5, -1.02, True),
        ("never", 2.0, 6, -0.98, True),  # at best -16 / 5 ** 2
        ("never", 0.0, 5, -15.9, False),
        ("never", -1.0, 5, -32.1, True),  # -16 / 2 ** -1: longer would only be worse
        ("never", -1.0, 5, -31.9, False),
        (False, 2.0, 5, -4.1, True),  # -16 / 2 ** 2 at the present length
        (False, 2.0, 5, -3.9, False),
        (True, 2.0, 5, -4.0, False),  # as good is not better
    ],
)
def test_condition_under_which_a_sample_can_improve(
    early_stopping: bool | str, length_penalty: float, max_length: int, worst: float, hopeful: bool
) -> None:
    options = options_with(
        num_beams=2, early_stopping=early_stopping, length_penalty=length_penalty, max_length=max_length
    )
    run = BeamSearch(ReferenceStep(tiny_bart("often"), 1, options), options, NullCallback())
    run.join(0, options)
    run._refresh()  # as the first step does
    run.scores = np.array([[-16.0, -17.0]], np.float32)
    assert not run.final(np.array([2])).any()  # with a place to fill there is always hope
    run.pool_scores = np.array([[-0.1, worst]], np.float32)
    assert run.final(np.array([2])).tolist() == [not hopeful or early_stopping is True]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small models run faster so
    yield
    torch.set_num_threads(threads)
