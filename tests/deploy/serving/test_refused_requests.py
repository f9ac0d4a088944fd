"""Requests of a worker that are wrong, or fail: each is refused alone, and what runs beside it is not changed."""

from __future__ import annotations

import errno
import json
import re
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp
from support.serving.triton_requests import alone, assert_same, audio_request, ids_request, run, text_request
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.scheduling.lane import Lane
from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.serving.worker import requests as reading


def with_inputs(*names: str, **parameters: Any) -> Request:
    """A request with some of the inputs, for two samples."""
    arrays = {
        "TEXT": np.array([[b"a town"], [b"a tram"]], np.object_),
        "INPUT_IDS": np.array([[5, 6, 2], [7, 8, 2]]),
        "LENGTHS": np.array([[2], [3]], np.int32),
        "AUDIO": np.zeros((2, 99), np.float32),
    }
    return Request(1, {name: arrays[name] for name in names}, json.dumps(parameters))


def with_lengths(*lengths: int) -> Request:
    request = with_inputs("INPUT_IDS")
    return Request(1, {**request.inputs, "LENGTHS": np.array(lengths, np.int32).reshape(-1, 1)}, "")


DEEP = "[" * 5000
ERRORS: list[tuple[Request, str]] = [
    (text_request(1, ""), "empty text; expected at least one word"),
    (text_request(1, " \t\n"), "empty text; expected at least one word"),
    (text_request(1, "a town", ""), "row 1: empty text"),
    (text_request(1, b"a \xff town"), "not UTF-8 .byte 2 is 0xff.; convert the text"),
    (text_request(1, "a \ud83d town".encode("utf-8", "surrogatepass")), "not UTF-8 .byte 2 is 0xed.; convert"),
    (
        Request(1, {"TEXT": np.array([["a \ud83d town"]], np.object_)}, ""),
        "not UTF-8 .byte 2 is 0xed.; convert the text",
    ),
    (
        text_request(1, "snow " * 99),
        r"longer than the model's 64 positions; shorten it, or cut it with \"truncate\": true$",
    ),
    (text_request(1, b"a" * ((1 << 16) + 1)), "the text has 65,537 bytes, expected 65,536 at most; shorten it"),
    (text_request(1, "a", num_beems=4), r"num_beems=4 .* is not a generation setting; did you mean num_beams\?"),
    (text_request(1, "a", self=1), "self=1 .* is not a generation setting; "),
    (text_request(1, "a", callback=1), "callback=1 .* is not a generation setting"),
    (text_request(1, "a", text="b"), "text='b' .* is not a generation setting"),
    (text_request(1, "a", num_beams=60_000), "num_beams=60000 .* needs .*; pass .num_beams.: 50 or less"),
    (text_request(1, "a", num_beams=41), "num_beams=41 is more than the 40 rows .* runs together; pass 40 or less"),
    (
        text_request(1, "a", num_beams=0),
        "num_beams=0 .from the request. is not an integer of at least 1; pass 1 or more",
    ),
    (text_request(1, "a", num_beams=4.0), "num_beams=4.0 .* is not an integer"),
    (text_request(1, "a", top_k=5), 'top_k=5 .* does nothing without do_sample; pass "do_sample": true, or leave it'),
    (text_request(1, "a", streamer=1), "streamer=1 .* is not a generation setting; leave it out, or take the text as"),
    (text_request(1, "a", num_return_sequences=3, num_beams=2), "num_return_sequences=3"),
    (text_request(1, "a", num_beams=True), "num_beams=True .* is not an integer"),
    (text_request(1, "a", num_beams="four"), "num_beams='four' .* is not an integer"),
    (text_request(1, "a", num_beams="4" * 5000), "num_beams='444.* is not an integer"),
    (text_request(1, "a", max_new_tokens="NaN"), "max_new_tokens=nan .* is not an integer"),
    (text_request(1, "a", length_penalty="1" + "0" * 400), "length_penalty=1.* is not a finite number; pass"),
    (text_request(1, "a", length_penalty="Infinity"), "length_penalty=inf .* is not a finite number; pass"),
    (text_request(1, "a", bad_words_ids="[[17], [4"), r"bad_words_ids='\[\[17\], \[4' .* is not a list"),
    (text_request(1, "a", bad_words_ids=DEEP), r"bad_words_ids='\[.* is not a list of lists of token ids; pass"),
    (text_request(1, "a", bad_words_ids="[[101]]"), "bad_words_ids=.* holds 101, which is outside the vocabulary"),
    (text_request(1, "a", bad_words_ids="[]"), r"bad_words_ids=\[\] .* is not a list of lists"),
    (text_request(1, "a", bad_words_ids='{"a": 1}'), "bad_words_ids=.* is not a list of lists"),
    (text_request(1, "a", early_stopping="often"), "early_stopping='often' .* is not a choice; pass true"),
    (text_request(1, "a", language="de"), "language='de' .* is for Whisper; remove it"),
    (
        text_request(1, "a", generation_config="/etc/passwd"),
        "generation_config is not a JSON object; pass settings such",
    ),
    (
        text_request(1, "a", generation_config='{"num_beams": 0}'),
        r"num_beams=0 .from generation_config. is not an integer",
    ),
    (text_request(1, "a", truncate="yes"), "truncate='yes' is not true, false, left or right"),
    (text_request(1, "a", truncate=1), "truncate=1 is not true, false, left or right"),
    (text_request(1, "a", num_beams="[" + "1," * 40000 + "1]"), "the parameters have 80,.* bytes, expected 65,536"),
    (ids_request(1, [5, 6], truncate=True), "truncate=True is for TEXT and MESSAGES; leave it out"),
    (with_inputs(), "the request has no source, expected TEXT, MESSAGES or INPUT_IDS"),
    (with_inputs("LENGTHS"), "the request has no source, expected TEXT, MESSAGES or INPUT_IDS"),
    (with_inputs("TEXT", "INPUT_IDS"), "the request has TEXT and INPUT_IDS, expected TEXT, MESSAGES or INPUT_IDS"),
    (with_inputs("AUDIO"), "the request has AUDIO, expected TEXT, MESSAGES or INPUT_IDS"),
    (with_inputs("TEXT", "LENGTHS"), "LENGTHS is for INPUT_IDS and AUDIO; leave it out"),
    (with_lengths(0, 3), "LENGTHS holds 0, expected 1 to 3, the width of INPUT_IDS"),
    (with_lengths(3, 4), "LENGTHS holds 4, expected 1 to 3"),
    (with_lengths(3, -(2**31)), "LENGTHS holds -2147483648, expected 1 to 3"),
    (with_lengths(3, 3, 3), "LENGTHS has 3 numbers, expected 2; pass one for each row of INPUT_IDS"),
    (ids_request(1, [5, 101]), "token id 101 is outside the vocabulary; expected 0 to 100"),
    (ids_request(1, [5, 6], [-1, 6]), "row 1: token id -1 is outside the vocabulary"),
    (ids_request(1, [5, 2**62]), "token id 4611686018427387904 is outside"),
    (ids_request(1, []), "no token ids; expected at least one"),
    (ids_request(1, [5] * 65), "65 token ids are more than the model's 64 positions; shorten them"),
    (Request(1, {"INPUT_IDS": np.zeros((0, 3), np.int64)}, ""), "INPUT_IDS has no row; expected at least one"),
]


PYTHON_S = re.compile(r"\b[a-z_]+=|\b(True|False|None)\b|Runner\.|--[a-z]|\(\d")
"""Advice that a client who sends JSON cannot follow."""


def assert_can_be_followed(message: str) -> None:
    """Assert that the fix of a message is for those who send requests."""
    assert len(message.splitlines()) == 1 and not PYTHON_S.search(message.rpartition("; ")[2]), message


@pytest.fixture(scope="module")
def neighbours(bart: Runner) -> list[Output]:
    return [alone(bart, bart.encode(text)[0], {}) for text in ("a small town", "the tram line")]


@pytest.mark.parametrize(("faulty", "expected"), ERRORS, ids=lambda value: value[:50] if isinstance(value, str) else "")
def test_client_error_refuses_only_its_request(
    bart: Runner, neighbours: list[Output], faulty: Request, expected: str
) -> None:
    requests = [text_request(0, "a small town"), faulty, text_request(2, "the tram line")]
    log = run(bart, requests, max_rows=40)
    (refused,) = log.refusals().values()
    assert refused.number == 1 and refused.client_error
    assert log.outputs(1) == []
    assert re.search(expected, refused.message), refused.message
    assert_can_be_followed(refused.message)
    assert (log.stats.prefills, log.stats.samples) == (1, 2)
    for number, output in zip((0, 2), neighbours, strict=True):
        assert_same(log.outputs(number)[0], output)


def test_a_full_disk_is_a_fault_of_the_server(
    bart: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reading.RequestParser, "parse", full)
    (refused,) = run(bart, [text_request(1, "a town")]).refusals().values()
    assert not refused.client_error
    assert refused.message == (
        "the server has no room for the request ([Errno 28] No space left on device); send the request again"
    )


def test_generation_config_of_a_request(bart: Runner) -> None:
    """An object, below the other parameters; settings without effect are left out."""
    config = {"num_beams": 3, "max_new_tokens": 5, "temperature": 0.5}
    request = text_request(1, "a town", generation_config=json.dumps(config), num_beams=2, output_scores=True)
    parsed = reading.RequestParser(bart.model, 40).parse(request)
    assert parsed.options == bart.options(num_beams=2, max_new_tokens=5)
    (output,) = run(bart, [request], max_rows=40).outputs(1)
    assert_same(output, alone(bart, bart.encode("a town")[0], {"num_beams": 2, "max_new_tokens": 5}))


PROMPT_FAULTS: list[tuple[Request, str]] = [
    (ids_request(1, [5] * 64), "64 token ids are more than the 63 that a prompt may have"),
    (ids_request(1, [5] * 60, max_new_tokens=5), "max_new_tokens=5 .* sequences of 65 tokens, the model has 64"),
    (ids_request(1, [5], [5] * 60, max_new_tokens=5), "row 1: max_new_tokens=5 .* sequences of 65 tokens"),
    (ids_request(1, [5] * 9, max_length=9), "max_length=9 .* leaves no room for a new token"),
    (text_request(1, "a town", "snow " * 60, max_new_tokens=30), "row 1: .*text of|row 1: max_new_tokens=30"),
]


@pytest.mark.parametrize(
    ("faulty", "expected"), PROMPT_FAULTS, ids=lambda value: "" if value is None else str(value)[:9]
)
def test_prompts_too_long_for_a_new_token(gpt2: Runner, faulty: Request, expected: str) -> None:
    log = run(gpt2, [ids_request(0, [5] * 3, max_new_tokens=5), faulty])
    message = log.refusals()[1].message
    assert re.search(expected, message), message
    assert_can_be_followed(message)
    assert_same(log.outputs(0)[0], alone(gpt2, [5] * 3, {"max_new_tokens": 5}))


CHIRP = chirp(0.5)
SOUND_FAULTS: list[tuple[Request, str]] = [
    (audio_request(1, np.full(9, np.nan, np.float32)), "the recording holds NaN or infinity; expected finite samples"),
    (audio_request(1, CHIRP, np.append(CHIRP, np.float32(np.inf))), "row 1: the recording holds NaN or infinity"),
    (audio_request(1, CHIRP * 1e8), "the recording holds samples of up to 4.*; expected -1 to 1"),
    (Request(1, {"AUDIO": np.zeros((1, 0), np.float32)}, ""), "the recording is empty; expected at least one sample"),
    (
        audio_request(1, np.zeros(121 * RATE_HZ, np.float32)),
        "the recording is longer than 120 seconds; cut it",
    ),
    (audio_request(1, *[np.zeros(50 * RATE_HZ, np.float32)] * 3), "row 2: the recordings up to this one have more tha"),
    (with_inputs("TEXT"), "the request has TEXT, expected AUDIO_FILE or AUDIO"),
    (with_inputs("INPUT_IDS", "AUDIO"), "the request has INPUT_IDS and AUDIO, expected AUDIO_FILE or AUDIO"),
    (
        audio_request(1, CHIRP, language="klingon"),
        "language='klingon' .* is not a language of this model, by its code or name; pass",
    ),
    (audio_request(1, CHIRP, language="5"), "language='5' .* is not a language of this model, by its code or name"),
    (audio_request(1, CHIRP, task="[1]"), r"task='\[1\]' .* is not a task of this model"),
    (audio_request(1, CHIRP, num_beams=2, num_return_sequences=2), "num_return_sequences=2 .* is not supported for Wh"),
    (audio_request(1, CHIRP, truncate=True), "truncate=True is for TEXT and MESSAGES; leave it out"),
    (audio_request(1, CHIRP, temperature=-1), r"pass 0, or one for each attempt, such as .temperature.: \[0.0, 0.2"),
    (audio_request(1, CHIRP, temperature=[0.1] * 9), "has 9 temperatures; pass 8 or fewer"),
    (audio_request(1, CHIRP, deadline_s=0), "deadline_s=0 is not a number of seconds above 0; pass one, or leave it"),
    (audio_request(1, CHIRP, logprob_threshold=-1), r"pass several, such as .temperature.: \[0.0, 0.2, 0.4\]"),
    (audio_request(1, CHIRP, prompt_condition_type="all-segments"), 'pass "condition_on_prev_tokens": true too'),
    (audio_request(1, CHIRP, prompt_condition_type="none"), 'is not a choice; pass "first-segment" or "all-segments"'),
]


@pytest.mark.parametrize(
    ("faulty", "expected"), SOUND_FAULTS, ids=lambda value: value[:50] if isinstance(value, str) else ""
)
def test_invalid_audio(whisper: Runner, faulty: Request, expected: str) -> None:
    log = run(whisper, [audio_request(0, CHIRP, max_new_tokens=3), faulty])
    message = log.refusals()[1].message
    assert re.search(expected, message), message
    assert_can_be_followed(message)
    assert len(log.outputs(0)) == 1 and log.outputs(1) == []


def test_no_text_without_a_tokenizer(wordless: Runner) -> None:
    log = run(wordless, [text_request(0, "a town"), ids_request(1, [5, 6, 2])], stream=True)
    assert log.refusals()[0].message.endswith("has no tokenizer, since its checkpoint has none; pass token ids")
    assert log.outputs(1)[0].texts is None
    assert {token.text for token in log.tokens(1)} == {""}


class Failing:
    """A decoder that raises after ``steps`` steps of a sample whose source holds the token ``poison``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, poison: int, steps: int) -> None:
        poisoned: set[int] = set()
        sample, advance = reading.RequestParser._sample, Lane.advance

        def noted(parser: reading.RequestParser, tokens: list[int], *rest: Any) -> Any:
            made = sample(parser, tokens, *rest)
            poisoned.update([made.number] if poison in tokens else [])
            return made

        def broken(lane: Lane) -> None:
            assert lane.batch is not None
            search = lane.batch.search
            for place, length in zip(search.places, search.lengths.tolist(), strict=True):
                if place.number in poisoned and length > steps:
                    raise BundleError("the model's scores are NaN or infinite; export it again")
            advance(lane)

        monkeypatch.setattr(reading.RequestParser, "_sample", noted)
        monkeypatch.setattr(Lane, "advance", broken)


@pytest.mark.parametrize("steps", [0, 3])
def test_model_error_refuses_only_its_request(bart: Runner, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The samples of its batch are run again, each alone, and their tokens are sent again."""
    settings = {"num_beams": 1, "max_new_tokens": 7, "min_new_tokens": 7}
    rows = [[5, 6, 2], [77, 8, 2], [9, 8, 7, 2], [50, 60, 70, 80, 2]]
    requests = [
        ids_request(0, rows[0], **settings),
        ids_request(1, rows[0], rows[1], **settings),
        ids_request(2, rows[2], rows[3], **settings),
    ]
    expected = [alone(bart, row, settings) for row in rows]
    Failing(monkeypatch, 77, steps)
    log = run(bart, requests, stream=True)
    assert list(log.refusals()) == [1]
    assert log.refusals()[1].message == "the model's scores are NaN or infinite; export it again"
    assert not log.refusals()[1].client_error
    assert_same(*log.outputs(1), expected[0])  # its other row was through
    for number, row, place in ((0, 0, 0), (2, 0, 2), (2, 1, 3)):
        assert_same(log.outputs(number)[row], expected[place])
        tokens = expected[place].sequences[0][1:]
        assert [token.token for token in log.tokens(number, row)] == tokens[:steps] + tokens
        places = [token.place for token in log.tokens(number, row)]
        assert places == [*range(1, steps + 1), *range(1, len(tokens) + 1)]
    assert log.stats.prefills == 1 + 5


def test_other_samples_of_a_refused_request_are_not_run(bart: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"num_beams": 1, "max_new_tokens": 4}
    Failing(monkeypatch, 77, 0)
    log = run(bart, [ids_request(0, [77, 5, 6, 2], [5, 6, 2], [6, 2], **settings)], max_rows=1)
    assert list(log.refusals()) == [0]
    assert (log.stats.prefills, log.stats.samples) == (2, 3 + 1)


def test_long_text_is_refused_before_it_is_tokenized(bart: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 3)
    log = run(bart, [text_request(0, "\u00e9\u00e9"), text_request(1, "abc", max_new_tokens=2)])
    assert log.refusals()[0].message == "the text has 4 bytes, expected 3 at most; shorten it"
    assert log.outputs(1)
