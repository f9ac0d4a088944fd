"""Stop strings in every search and from every front end: the tokens of ``model.generate(stop_strings=...)``."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from transformers.generation.stopping_criteria import StopStringCriteria

from support.bundles.cache import BundleCache
from support.commands import Command, caller
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.serving.worker.requests import _settings

LIKE_TRANSFORMERS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {"num_beams": 1, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    {"num_beams": 2, "early_stopping": True, "num_return_sequences": 2},
    {"num_beams": 3, "length_penalty": -1.0, "early_stopping": "never"},
    {"num_beams": 2, "renormalize_logits": True, "bad_words_ids": [[9], [25]]},
    {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 2.0},
)
OTHERS: tuple[dict[str, Any], ...] = (
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "num_return_sequences": 4},
    {"num_beams": 3, "force_words_ids": "the likeliest first token", "num_return_sequences": 2},
    {"do_sample": True, "num_beams": 2, "num_return_sequences": 2, "seed": 5},
)


class Case:
    """A bundle, its checkpoint in torch and its tokenizer."""

    def __init__(self, bundles: BundleCache, family: str) -> None:
        self.path = bundles("dedup", family, tokenizer=True)
        self.runner = Runner.load(self.path, threads=1)
        self.model = bundles.trace(family, tokenizer=True)[0].model
        self.tokenizer = AutoTokenizer.from_pretrained(self.path / "tokenizer")

    def rows(self, draw: random.Random) -> list[int]:
        return [draw.randrange(3, 90) for _ in range(draw.randint(2, 9))]

    def first(self, row: list[int]) -> int:
        return len(row) if self.runner.decoder_only else 1

    def cut(self, draw: random.Random, sequence: list[int]) -> list[str]:
        """Texts out of a sequence, cut at any character."""
        texts = self.runner.model.settings._codec.token_texts  # type: ignore[union-attr]
        whole = b"".join(texts.of(token) or b"" for token in sequence).decode()
        begins = [draw.randrange(len(whole)) for _ in range(draw.choice([1, 1, 2]))]
        return [whole[begin : begin + draw.choice([1, 2, 3, 4, 7])] for begin in begins]

    def ends(self, row: list[int], stops: list[str]) -> bool:
        return bool(StopStringCriteria(self.tokenizer, stops)(torch.tensor([row]), None)[0])


@pytest.fixture(scope="module", params=["bart", "gpt2"])
def case(bundles: BundleCache, request: pytest.FixtureRequest) -> Iterator[Case]:
    yield Case(bundles, request.param)


def in_turn(searches: int) -> list[Any]:
    """Families and searches; ``make test`` has one family for each search."""
    cases = itertools.product(("bart", "gpt2"), range(searches))
    return slow_unless(cases, lambda family, search: family == ("bart", "gpt2")[search % 2])


@pytest.mark.parametrize(("case", "search"), in_turn(len(LIKE_TRANSFORMERS)), indirect=["case"])
def test_tokens_are_those_of_generate(case: Case, search: int) -> None:
    draw, hits = random.Random(search), 0
    for _ in range(12):
        row = case.rows(draw)
        settings = {**LIKE_TRANSFORMERS[search], "max_new_tokens": 10, "forced_eos_token_id": None}
        free = case.runner.generate([row], **settings)
        stops = case.cut(draw, free.sequences[-1, case.first(row) :].tolist())
        found = case.runner.generate([row], **settings, stop_strings=stops)
        with torch.no_grad():
            expected = case.model.generate(
                torch.tensor([row]),
                attention_mask=torch.ones(1, len(row), dtype=torch.long),
                stop_strings=stops,
                tokenizer=case.tokenizer,
                return_dict_in_generate=True,
                output_scores=True,
                **settings,
            )
        assert found.sequences.tolist() == expected.sequences.tolist(), stops
        if found.scores is not None:
            np.testing.assert_allclose(found.scores, expected.sequences_scores.numpy(), rtol=1e-4, atol=1e-5)
        hits += found.finish_reasons.count("stop_string")
    assert hits > 5


@pytest.mark.parametrize(("case", "search"), in_turn(len(OTHERS)), indirect=["case"])
def test_what_completes_a_text_ends_and_nothing_goes_on_behind_it(case: Case, search: int) -> None:
    draw, hits = random.Random(search), 0
    for _ in range(10):
        row = case.rows(draw)
        settings = {**OTHERS[search], "max_new_tokens": 10, "eos_token_id": 2, "pad_token_id": 1}
        settings |= {"forced_eos_token_id": None}
        first = case.first(row)
        if "force_words_ids" in settings:
            likeliest = int(case.runner.generate([row], num_beams=1, max_new_tokens=1).sequences[0, -1])
            settings |= {"force_words_ids": [[likeliest]]}
        free = case.runner.generate([row], **settings)
        stops = case.cut(draw, free.sequences[0, first + free.new_tokens[0] // 2 : first + free.new_tokens[0]].tolist())
        found = case.runner.generate([row], **settings, stop_strings=stops)
        for sequence, new, reason in zip(found.sequences.tolist(), found.new_tokens, found.finish_reasons, strict=True):
            over = [case.ends(sequence[: first + count], stops) for count in range(1, new + 1)]
            assert not any(over[:-1])
            assert (reason == "stop_string") == (over[-1] and sequence[first + new - 1] != 2)
            assert set(sequence[first + new :]) <= {1}
        hits += found.finish_reasons.count("stop_string")
    assert hits > 2


@pytest.mark.parametrize("search", range(len(LIKE_TRANSFORMERS) + len(OTHERS)))
def test_a_search_ends_if_nothing_goes_on(case: Case, search: int) -> None:
    settings = {
        **(*LIKE_TRANSFORMERS, *OTHERS)[search],
        "max_new_tokens": 9,
        "stop_strings": list("abcdefghijklmnopqrstuvwxyz .,</>"),
    }
    if "force_words_ids" in settings:
        settings |= {"force_words_ids": [[50, 51]]}
    found = case.runner.generate([[5, 6, 7]], **settings)
    assert set(found.new_tokens) == {1} and set(found.finish_reasons) <= {"stop_string", "end_token"}


def test_draws_are_those_without_stop_strings_up_to_the_end(case: Case) -> None:
    draw, settings = random.Random(1), {"do_sample": True, "num_return_sequences": 4, "seed": 7, "max_new_tokens": 9}
    settings["forced_eos_token_id"] = None
    row = case.rows(draw)
    free, first = case.runner.generate([row], **settings), case.first(row)
    stops = case.cut(draw, free.sequences[1, first : first + free.new_tokens[1]].tolist())
    found = case.runner.generate([row], **settings, stop_strings=stops)
    assert "stop_string" in found.finish_reasons
    for whole, own, new, reason in zip(
        free.sequences.tolist(), found.sequences.tolist(), found.new_tokens, found.finish_reasons, strict=True
    ):
        assert own[: first + new] == whole[: first + new]
        assert (reason == "stop_string") == case.ends(own[: first + new], stops)
        assert not any(case.ends(own[: first + count], stops) for count in range(1, new))


def test_lines_of_json_and_the_option(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command: Command = caller(monkeypatch, capsys)
    row = case.rows(random.Random(4))
    free = case.runner.generate([row], num_beams=1, max_new_tokens=9)
    stop = case.cut(random.Random(5), free.sequences[0, case.first(row) :].tolist())[0]
    expected = case.runner.generate([row], num_beams=1, max_new_tokens=9, stop_strings=stop)
    assert expected.finish_reasons == ("stop_string",)
    length = ("--json", "--ids", "--num-beams=1", "--max-new-tokens=9")
    lines = b"".join(json.dumps({"ids": row, **own}).encode() + b"\n" for own in ({"stop_strings": [stop]}, {}))
    several = command(case.path, *length, "--json-input=ids", stdin=lines).succeeded().records
    one = command(case.path, *length, f"--stop-string={stop}", "--stop-string=\u96ea", stdin=json.dumps(row).encode())
    kept = expected.sequences[0, len(row) if case.runner.decoder_only else 0 :].tolist()
    assert several[0]["tokens"] == one.succeeded().records[0]["tokens"] == kept
    assert (several[0]["finish_reason"], several[1]["tokens"][: len(kept)]) == ("stop_string", kept)
    assert several[0]["text"] == case.runner.decode(kept)


def test_parameters_of_a_request() -> None:
    for given, read in (("User:", "User:"), ('["a", "b"]', ["a", "b"]), ("42", "42"), ("null", "null"), ("[x", "[x")):
        assert _settings(json.dumps({"stop_strings": given})) == {"stop_strings": read}


@pytest.mark.parametrize("value", ["", [], [""], ["a", 3], 4, {"a": 1}, ["\ud800"], ["a"] * 65, "a" * 257])
def test_other_values_are_refused(case: Case, value: Any) -> None:
    with pytest.raises(GenerationError, match=r"stop_strings=.*; (pass|remove)"):
        case.runner.options(stop_strings=value)


def test_models_without_texts_refuse_them(case: Case, bundles: BundleCache) -> None:
    wordless = Runner(case.runner.bundle, case.runner.model.runtime, None)
    with pytest.raises(GenerationError, match="stop_strings need a tokenizer, and this bundle has none"):
        wordless.options(stop_strings="a")
    assert wordless.options(stop_strings=None) == replace(case.runner.options(), stop_strings=None)
    with pytest.raises(GenerationError, match=r"stop_strings='a' .*not supported for Whisper; leave it out"):
        Runner.load(bundles("dedup", "whisper"), threads=1).options(stop_strings="a")
