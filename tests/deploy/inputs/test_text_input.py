"""Text and JSONL input through a runner, without the command."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.inputs import run_lines
from tightbeam.deploy import GenerationError, InputError, Runner
from tightbeam.deploy.generation.fields import DORMANT, SUPPORTED, UNSUPPORTED
from tightbeam.deploy.generation.layers import COMMAND_LINE, with_source
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.inputs.lines import LineFormat, _Reader
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.read_ahead import CAPACITY, POLL_S, ReadAhead
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import _run, _StopBeforeEncoding
from tightbeam.deploy.runtimes import onnxruntime_cpu
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.scheduling.queue import WINDOW

LINES = [text.encode() for text in SENTENCES]


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("el", tokenizer=True), threads=1)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_batches_do_not_change_results_or_order(runner: Runner, batch_size: int, num_beams: int) -> None:
    lines = [*LINES, b"\xff", *LINES[::-1], b" \t "]
    results = list(run_lines(runner, lines, batch_size=batch_size, num_beams=num_beams, max_new_tokens=6))
    assert [result.number for result in results] == list(range(1, 11))
    expected = [runner.generate_text([text], num_beams=num_beams, max_new_tokens=6)[0] for text in SENTENCES]
    wanted = [*expected, None, *expected[::-1], None]
    assert [result.texts[0] if result.texts else None for result in results] == wanted
    assert [result.error is None for result in results] == [text is not None for text in wanted]


def test_batch_of_bad_lines_only(runner: Runner) -> None:
    results = list(run_lines(runner, [b"", b"\xff", b"a town"], batch_size=2, max_new_tokens=2))
    assert [result.error is None for result in results] == [False, False, True]


def test_results_do_not_wait_for_lines_that_are_still_to_be_typed(runner: Runner) -> None:
    seen = threading.Event()

    def lines() -> Iterator[bytes]:
        yield LINES[0]
        assert seen.wait(60), "the first result waits for a later line"
        yield LINES[1]

    results = run_lines(runner, lines(), typed=True, max_new_tokens=2)
    assert next(results).texts
    seen.set()
    assert [result.number for result in results] == [2]


def test_a_file_is_not_read_far_ahead_and_no_longer_than_wanted(runner: Runner) -> None:
    read = 0

    def lines() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield LINES[read % len(LINES)]

    results = run_lines(runner, lines(), batch_size=2, max_new_tokens=2)
    assert [next(results).number for _ in range(5)] == [1, 2, 3, 4, 5]
    assert read < 4 * WINDOW + CAPACITY
    results.close()
    time.sleep(3 * POLL_S)
    before = read
    time.sleep(3 * POLL_S)
    assert read == before


def test_lines_before_a_failure_of_the_input_have_results(runner: Runner) -> None:
    def lines() -> Iterator[bytes]:
        yield from LINES[:3]
        raise OSError("the disk is gone")

    results = run_lines(runner, lines(), batch_size=2, max_new_tokens=2)
    assert [next(results).number for _ in range(3)] == [1, 2, 3]
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


def test_settings_are_refused_before_a_line_is_read(runner: Runner) -> None:
    def never() -> Iterator[bytes]:
        raise AssertionError("a line was read")
        yield b""

    with pytest.raises(GenerationError, match="num_beems"):
        next(run_lines(runner, never(), num_beems=4))


def test_token_outside_the_vocabulary_fails_only_its_line(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """bart-large-cnn's tokenizer has an id for <mask> that is one beyond the model's vocabulary."""
    encode = runner.model.text._codec.encode

    def with_mask(text: str) -> list[int]:
        return [*encode(text), *([101] if "<mask>" in text else [])]

    monkeypatch.setattr(runner.model.text._codec, "encode", with_mask)
    good, bad, again = run_lines(runner, [LINES[0], b"a <mask> town", LINES[1]], max_new_tokens=3)
    assert bad.error is not None and "token 101" in bad.error and "vocabulary of 101" in bad.error
    assert good.texts and again.texts and not bad.texts


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_line_whose_scores_are_nan_fails_alone(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, num_beams: int
) -> None:
    """The encoder makes NaN of every source with token 77; the lines beside it get what they get alone."""
    lines = [b"[5, 6, 2]", b"[5, 77, 2]", b"[8, 9, 10, 2]", b"[77, 2]", b"[11, 2]", b"[4, 2]"]
    settings: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": 6}
    expected = [next(run_lines(runner, [line], LineFormat(ids=True), **settings)).sequences for line in lines]
    encode = OnnxRuntimeCpu._encode

    def overflowing(self: OnnxRuntimeCpu, source: Any, *args: Any, **named: Any) -> Any:
        encoded = encode(self, source, *args, **named)
        for name, array in encoded.items():
            if name != "attention_mask":
                array[(source == 77).any(axis=1)] = np.nan
        return encoded

    monkeypatch.setattr(OnnxRuntimeCpu, "_encode", overflowing)
    results = list(run_lines(runner, lines, LineFormat(ids=True), batch_size=3, **settings))
    assert [result.number for result in results] == [1, 2, 3, 4, 5, 6]
    for result, line, own in zip(results, lines, expected, strict=True):
        if b"77" in line:
            assert result.error is not None and "NaN or infinite" in result.error and not result.sequences
        else:
            assert result.error is None and result.sequences == own


def test_only_the_first_line_may_begin_with_a_byte_order_mark(runner: Runner) -> None:
    plain, marked, later = (
        next(run_lines(runner, [b"[5, 2]"], LineFormat(ids=True), max_new_tokens=2)),
        *run_lines(runner, [b"\xef\xbb\xbf[5, 2]", b"\xef\xbb\xbf[5, 2]"], LineFormat(ids=True), max_new_tokens=2),
    )
    assert marked.sequences == plain.sequences
    assert later.error is not None


def test_as_json_is_strict_json_on_one_line() -> None:
    result = InputResult(3, 2, sequences=[[2, 5], [2, 6]], scores=[-0.5, float("-inf")], texts=["a\nb\u2028", "雪"])
    result.finish_reasons, result.source_tokens, result.new_tokens = ["end_token", "length"], 7, 2

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = result.as_json()
    assert "\n" not in text
    record = json.loads(text, parse_constant=refuse)
    assert record == {
        "line": 3,
        "text": "a\nb\u2028",
        "score": -0.5,
        "texts": ["a\nb\u2028", "雪"],
        "scores": [-0.5, None],
        "finish_reason": "end_token",
        "finish_reasons": ["end_token", "length"],
        "source_tokens": 7,
        "new_tokens": 2,
        "tokens": [2, 5],
        "sequences": [[2, 5], [2, 6]],
    }


def test_as_text_is_one_line_for_each_sequence() -> None:
    assert InputResult(1, 2, texts=["a\nb\r\nc", "d"]).as_text() == "a b c\nd"
    assert InputResult(1, 1, sequences=[[2, 5]]).as_text() == "2 5"
    assert InputResult(1, 3, error="bad").as_text() == "\n\n"
    assert InputResult(1, error="bad").as_text() == ""


def test_text_without_a_tokenizer_is_refused_before_a_line_is_read(bundles: BundleCache) -> None:
    whole = Runner.load(bundles("el", tokenizer=True), threads=1)
    plain = Runner(whole.bundle, whole.model.runtime, None)
    (ids,) = run_lines(plain, [b"[5, 2]"], LineFormat(ids=True), max_new_tokens=2)
    assert ids.error is None and ids.texts is None and ids.sequences
    with pytest.raises(InputError, match="has no tokenizer, since its checkpoint has none; pass token ids"):
        next(run_lines(plain, iter(lambda: pytest.fail("a line was read"), b""), max_new_tokens=2))


def test_new_tokens_are_counted_without_start_token_and_prompt(bundles: BundleCache) -> None:
    settings = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 6, "min_new_tokens": 6}
    for variant, family in (("el", "bart"), ("dedup", "gpt2")):
        model = Runner.load(bundles(variant, family), threads=1)
        for result in run_lines(model, [b"[5, 6, 7]", b"[8]"], LineFormat(ids=True), **settings):
            assert result.new_tokens == 12


def test_a_turn_ends_before_the_next_run_of_the_encoder(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty batch is filled by several runs of the encoder. The caller wants nothing more during the first one."""
    samples = [runner.sample(number, [5, 6, 2], {}) for number in range(4)]
    read = ReadAhead([OpenInput(InputResult(number), [sample]) for number, sample in enumerate(samples)])
    encode, runs = OnnxRuntimeCpu.encode, []

    def interrupted(self: OnnxRuntimeCpu, *args: Any, **named: Any) -> Any:
        runs.append(1)
        read.__exit__(None, None, None)
        return encode(self, *args, **named)

    monkeypatch.setattr(onnxruntime_cpu, "ENCODED_TOGETHER", 3)
    monkeypatch.setattr(OnnxRuntimeCpu, "encode", interrupted)
    scheduler = runner.scheduler(99, _StopBeforeEncoding(read))
    with read:
        assert list(_run(scheduler, read, runner.model, typed=False, most_open=1024)) == []
    assert runs == [1]


# JSON lines


def as_lines(*records: object) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


OBJECTS = LineFormat(field="text")


def test_a_line_has_settings_of_its_own(runner: Runner) -> None:
    """Lines of several groups are run together, and each gets what it gets alone with its settings."""
    asked: list[dict[str, Any]] = [
        {},
        {"num_beams": 2},
        {"num_beams": 2, "num_return_sequences": 2},
        {"max_length": 4},  # overrides max_new_tokens of all lines
        {"min_new_tokens": 5, "no_repeat_ngram_size": 2},
        {"num_beams": 4, "early_stopping": "never", "length_penalty": 2},
        {"eos_token_id": [5, 6]},
    ] * 2
    common: dict[str, Any] = {"max_new_tokens": 6, "min_length": 3}
    texts = [SENTENCES[number % len(SENTENCES)] for number in range(len(asked))]
    lines = as_lines(*({"text": text, **own} for text, own in zip(texts, asked, strict=True)))
    results = list(run_lines(runner, lines, OBJECTS, max_rows=8, **common))
    for number, (result, text, own) in enumerate(zip(results, texts, asked, strict=True), start=1):
        overridden = {"max_length": "max_new_tokens", "min_new_tokens": "min_length"}
        kept = {name: value for name, value in common.items() if name not in {overridden.get(each) for each in own}}
        assert result.number == number and result.error is None
        assert result.texts == runner.generate_text([text], **{**kept, **own})
        assert result.returned == own.get("num_return_sequences", 1)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"text": "a town", "num_beems": 3}', "num_beems=3 .* is not a generation setting; did you mean num_beams"),
        (b'{"text": "a town", "self": 3}', "self=3 .* is not a generation setting"),
        (b'{"text": "a town", "ids": true}', "ids=True .* is not a generation setting"),
        (b'{"text": "a town", "num_beams": 0}', r"num_beams=0 \(from the line\) is not an integer"),
        (b'{"text": "a town", "num_beams": 9}', "num_beams=9 is more than the 8 rows .* a larger --max-rows"),
        (b'{"text": "a town", "num_beams": NaN}', "num_beams=nan"),
        (b'{"text": "a town", "num_beams": 2, "num_beams": 3}', "the field 'num_beams' stands twice"),
        (b'{"text": "a town", "max_length": 1e400}', "max_length=inf"),
        (b'{"text": "a town", "truncate": "yes"}', "truncate='yes' is not true, false, left or right"),
        (b'{"text": "a town", "generation_config": {"num_beams": 2}}', "write its settings into the line"),
        (b'{"text": "a town", "language": "de"}', "language='de' .* it is for Whisper"),
        (b'{"txt": "a town"}', r"no field 'text' among \['txt'\]; expected a line such as"),
        (b"{}", "no field 'text' among none"),
        (b'{"text": 5}', "text is int, expected a text"),
        (b'{"text": null}', "text is NoneType, expected a text"),
        (b'{"text": "\\ud800"}', "half a character"),
        (b'{"text": " "}', "empty text"),
        (b'{"text": "a town"', "not a JSON object"),
        (b'["a town"]', "not a JSON object"),
        (b"[" * 100000, "has 100,000 marks"),
        (b"[" * 60000, "not a JSON object"),
        (b'{"text": "a town", "num_beams": ' + b"[" * 700 + b"]" * 700 + b"}", "num_beams=.* is not an integer"),
        (b'{"text": "a town", "num_beams": ' + b"9" * 5000 + b"}", "not a JSON object"),
        (b"\xff", "not UTF-8"),
        (b"", "not a JSON object"),
    ],
)
def test_a_bad_object_fails_alone(runner: Runner, line: bytes, error: str) -> None:
    good = as_lines({"text": SENTENCES[0]})[0]
    before, bad, after = run_lines(runner, [good, line, good], OBJECTS, batch_size=8, max_new_tokens=3)
    assert bad.error is not None and re.search(error, bad.error) and "\n" not in bad.error
    assert before.texts == after.texts and before.texts


def test_objects_with_token_ids_truncation_and_settings_without_effect(runner: Runner) -> None:
    (result,) = run_lines(runner, as_lines({"x": [5, 6, 2]}), LineFormat(ids=True, field="x"), max_new_tokens=3)
    assert result.sequences == runner.generate([[5, 6, 2]], max_new_tokens=3).sequences.tolist()
    long = " ".join(SENTENCES * 4)
    refused, cut, noted = run_lines(
        runner,
        as_lines({"text": long}, {"text": long, "truncate": True}, {"text": "a town", "output_scores": True}),
        OBJECTS,
        max_new_tokens=3,
    )
    assert refused.error is not None and "longer than" in refused.error
    assert cut.error is None and cut.cut > 0
    assert noted.error is None and len(noted.notes) == 1 and "output_scores=True (from the line)" in noted.notes[0]


@pytest.mark.parametrize(
    ("own", "common", "error"),
    [
        (
            {"temperature": 0.5},
            {},
            'temperature=0.5 (from the line) does nothing without do_sample; pass "do_sample": true, or leave it out',
        ),
        (
            {"early_stopping": 5},
            {},
            'early_stopping=5 (from the line) is not a choice; pass true, false or "never"',
        ),
        ({"num_return_sequences": 3}, {"num_beams": 2}, "num_return_sequences=3 (from the line) is more than num_be"),
        ({"num_beams": 1}, {"num_return_sequences": 2}, "num_return_sequences=2 (from the call) is more than num_bea"),
        (
            {"num_beams": 1},
            {"generation_config": {"num_return_sequences": 2}},
            "num_return_sequences=2 (from generation_config) is more than num_beams=1",
        ),
    ],
)
def test_an_error_names_the_source_of_its_setting(
    runner: Runner, own: dict[str, Any], common: dict[str, Any], error: str
) -> None:
    lines = as_lines({"text": "a town", "num_beams": 4}, {"text": "a town", **own})
    good, bad = run_lines(runner, lines, OBJECTS, max_rows=8, max_new_tokens=3, **{"num_beams": 2, **common})
    assert good.error is None and bad.error is not None and bad.error.startswith(error)


def test_settings_are_resolved_once(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all lines, and once for each line with settings of its own."""
    resolved: list[Any] = []

    def counting(*given: Any, **how: Any) -> Any:
        resolved.append(given[1])
        return resolve_settings(*given, **how)

    monkeypatch.setattr("tightbeam.deploy.model.settings.resolve_settings", counting)
    settings = with_source({"num_beams": 1, "max_new_tokens": 3}, COMMAND_LINE)
    plain = list(run_lines(runner, LINES * 2, **settings))
    assert len(resolved) == 1 and all(result.error is None for result in plain)
    own = [{}, {"num_beams": 2}, {}, {"length_penalty": 2.0}]
    lines = as_lines(*({"text": text, **each} for text, each in zip(SENTENCES, own, strict=True)))
    assert all(result.error is None for result in run_lines(runner, lines, OBJECTS, max_rows=8, **settings))
    assert len(resolved) == 3


def test_a_limit_of_a_line_overrides_that_of_a_config(runner: Runner) -> None:
    lines = as_lines({"text": SENTENCES[0], "max_length": 4})
    (result,) = run_lines(runner, lines, OBJECTS, generation_config={"max_new_tokens": 6}, min_length=4)
    assert result.texts == runner.generate_text(SENTENCES[:1], max_length=4, min_length=4)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([1, 2, 4, 0.5, 1e400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(sorted({*SUPPORTED, *DORMANT, *UNSUPPORTED, "truncate", "language", "generation_config"}))


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(
    text=st.text(max_size=20) | VALUES,
    own=st.dictionaries(NAMES | st.text(max_size=3), VALUES, max_size=3),
    cut=st.booleans(),
)
def test_whatever_a_line_holds_it_is_read_or_has_one_error(
    runner: Runner, text: Any, own: dict[str, Any], cut: bool
) -> None:
    """A line is one sample that fits into the rows, or an error of one line, whatever its settings are."""
    line = json.dumps({**own, "text": text}).encode()
    opened = _Reader(runner.model, OBJECTS, {}, 8, 1).read((1, line[: len(line) // 2] if cut else line))
    if opened.failure is None:
        (sample,) = opened.samples
        assert sample.options.num_beams <= 8 and opened.result.returned == sample.options.num_return_sequences
    else:
        assert not opened.samples and str(opened.failure) and "\n" not in str(opened.failure)
