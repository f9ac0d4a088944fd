"""Requests of a worker: each gets the result that it gets alone, whatever runs beside it."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from support.audio import RATE_HZ, chirp
from support.checkpoints.families import SENTENCES
from support.checkpoints.whisper_tokenizer import whisper_tokenizer
from support.inputs import read_features, transcribe
from support.serving.triton_requests import alone, assert_same, audio_request, ids_request, run, text_request
from tightbeam.deploy import Runner
from tightbeam.deploy.serving.protocol.messages import Reading, Report, Request, Row
from tightbeam.deploy.serving.worker.requests import QUICK_BYTES
from tightbeam.deploy.serving.worker.running import RunningRequests
from tightbeam.deploy.text.detokenizer import HALF
from tightbeam.deploy.text.tokenizer import _TokenizersCodec

CHIRP = chirp(0.5)


def sentences(generator: np.random.Generator, most: int) -> list[str]:
    """Pieces of sentences, of 1 to ``most`` words."""
    words = " ".join(SENTENCES).split()
    starts = generator.integers(0, len(words) - most, generator.integers(1, 4))
    return [" ".join(words[start : start + generator.integers(1, most + 1)]) for start in starts.tolist()]


def drawn_settings(generator: np.random.Generator) -> dict[str, Any]:
    beams = int(generator.choice([1, 1, 2, 4]))
    settings: dict[str, Any] = {"num_beams": beams, "max_new_tokens": int(generator.integers(2, 9))}
    others: dict[str, list[Any]] = {
        "no_repeat_ngram_size": [2, 3],
        "repetition_penalty": [1.3, 0.8],
        "length_penalty": [2.0, -1.0],
        "min_new_tokens": [4, 1],
        "num_return_sequences": [beams],
        "early_stopping": [True, "never"],
        "bad_words_ids": ["[[17], [4, 8]]", "[[1, 20], [33]]"],
        "forced_bos_token_id": [9],
        "suppress_tokens": ["[7, 11]"],
    }
    for name in generator.choice(list(others), generator.integers(0, 4), replace=False).tolist():
        settings[name] = others[name][generator.integers(len(others[name]))]
    return settings


def parsed(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as the runner takes them, with lists in place of JSON."""
    return {
        name: json.loads(value) if isinstance(value, str) and value.startswith("[") else value
        for name, value in settings.items()
    }


def sources_of(runner: Runner, request: Request, settings: dict[str, Any]) -> list[list[int]]:
    if "TEXT" in request.inputs:
        return [runner.encode(text.decode(), **settings)[0] for text in request.inputs["TEXT"].ravel()]
    ids = request.inputs["INPUT_IDS"]
    lengths = request.inputs.get("LENGTHS", np.full((len(ids), 1), ids.shape[1]))
    return [row[:length].tolist() for row, length in zip(ids, lengths[:, 0].tolist(), strict=True)]


# ---- together and alone ----


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["bart", "gpt2", "wordless"])
def test_results_are_those_of_each_request_alone(request: pytest.FixtureRequest, name: str, seed: int) -> None:
    runner: Runner = request.getfixturevalue(name)
    generator = np.random.default_rng(seed)
    drawn = [drawn_settings(generator) for _ in range(7)]
    asked: list[tuple[Request, dict[str, Any]]] = []
    for number in range(24):
        settings = drawn[generator.integers(len(drawn))]
        if runner.has_tokenizer and generator.random() < 0.6:
            request_ = text_request(number, *sentences(generator, 8), **settings)
        else:
            lengths = generator.integers(1, 20, generator.integers(1, 4)).tolist()
            rows = [generator.integers(3, 90, length).tolist() for length in lengths]
            request_ = ids_request(number, *rows, **settings)
        asked.append((request_, parsed(settings)))
    max_rows = 12
    log = run(runner, [request_ for request_, _ in asked], max_rows=max_rows)
    assert log.refusals() == {}
    rows = 0
    for request_, settings in asked:
        sources = sources_of(runner, request_, settings)
        outputs = log.outputs(request_.number)
        assert len(outputs) == len(sources)
        for found, tokens in zip(outputs, sources, strict=True):
            assert_same(found, alone(runner, tokens, settings))
            rows += 1
    assert log.stats.samples == rows > log.stats.prefills
    assert sorted(set(log.started)) == list(range(24))
    assert log.stats.tokens == sum(
        len(row) for request_, _ in asked for output in log.outputs(request_.number) for row in output.sequences
    )
    assert log.stats.sample_steps > log.stats.steps > 9
    assert log.stats.prefill_seconds > 0 and log.stats.step_seconds > 0


def test_texts_equal_generate_text(bart: Runner, gpt2: Runner) -> None:
    for runner in (bart, gpt2):
        for settings in ({"num_beams": 3, "max_new_tokens": 6}, {"num_beams": 1, "max_new_tokens": 9}):
            texts = [sentence[:30] for sentence in SENTENCES]
            log = run(runner, [text_request(place, text, **settings) for place, text in enumerate(texts)])
            expected = [runner.generate_text([text], **settings)[0] for text in texts]
            assert [log.outputs(place)[0].texts for place in range(4)] == [[text] for text in expected]
            assert (log.stats.prefills, log.stats.samples) == (1, 4)


def test_equal_settings_in_other_notation_share_a_batch(bart: Runner) -> None:
    ways: list[dict[str, Any]] = [
        {"num_beams": 2, "length_penalty": 1, "early_stopping": True},
        {"num_beams": "2", "length_penalty": 1.0, "early_stopping": "true"},
        {"early_stopping": True, "num_beams": 2, "length_penalty": "1.0", "no_repeat_ngram_size": "null"},
        {"early_stopping": True, "num_beams": 2, "triton_enable_empty_final_response": True},
    ]
    ways = [{**way, "max_new_tokens": 5} for way in ways]
    log = run(bart, [text_request(number, SENTENCES[number], **way) for number, way in enumerate(ways)])
    assert (log.stats.prefills, log.stats.samples) == (1, 4)
    for number in range(4):
        expected = alone(bart, bart.encode(SENTENCES[number])[0], parsed(ways[0]))
        assert_same(log.outputs(number)[0], expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 5},
        {"max_length": 30},  # each has another number of new tokens
        {"max_new_tokens": 9, "min_length": 12},
        {"max_new_tokens": 9, "no_repeat_ngram_size": 2},
        {"max_new_tokens": 9, "repetition_penalty": 1.4},
        {"max_new_tokens": 9, "forced_bos_token_id": 40},  # of which a prompt of one token alone is affected
        {"max_new_tokens": 9, "bad_words_ids": "[[1, 5, 60]]"},  # 1 is the pad token
        {"max_new_tokens": 9, "bad_words_ids": "[[5, 60], [7, 8, 1]]"},
    ],
)
def test_prompts_of_any_length_run_together(gpt2: Runner, settings: dict[str, Any]) -> None:
    prompts = [[5], [9, 8, 7, 6], [5, 5, 60, 5, 60, 5, 9, 5], [7]]
    log = run(gpt2, [ids_request(number, prompt, **settings) for number, prompt in enumerate(prompts)])
    assert log.stats.prefills == 1
    for number, prompt in enumerate(prompts):
        assert_same(log.outputs(number)[0], alone(gpt2, prompt, parsed(settings)))


def test_bad_words_do_not_begin_in_padding(gpt2: Runner) -> None:
    """The token that a prompt goes on with may not follow a pad token and that prompt; alone there is no pad token."""
    prompt, longer = [5], [9, 8, 7, 6]
    (first,) = alone(gpt2, prompt, {"max_new_tokens": 1}).sequences[0]
    settings = {"max_new_tokens": 1, "bad_words_ids": f"[[1, 5, {first}]]"}
    log = run(gpt2, [ids_request(0, prompt, **settings), ids_request(1, longer, **settings)])
    assert log.outputs(0)[0].sequences == [[first]]


def test_forced_first_token_in_a_batch(gpt2: Runner) -> None:
    settings = {"max_new_tokens": 3, "forced_bos_token_id": 40}
    log = run(gpt2, [ids_request(0, [5], **settings), ids_request(1, [9, 8, 7, 6], **settings)])
    assert log.outputs(0)[0].sequences[0][0] == 40
    assert log.outputs(1)[0].sequences[0][0] != 40


@pytest.mark.parametrize("max_rows", [4, 7, 8, 1000])
def test_max_rows_bounds_a_step_without_changing_results(bart: Runner, max_rows: int) -> None:
    asked = [(SENTENCES[place % 4][: 9 + 5 * place], 4 if place % 2 else 1) for place in range(10)]
    requests = [
        text_request(number, text, num_beams=beams, max_new_tokens=5) for number, (text, beams) in enumerate(asked)
    ]
    log = run(bart, requests, max_rows=max_rows)
    assert (log.stats.steps > 10) == (max_rows < 40), "expected two groups of five steps where all have room"
    for number, (text, beams) in enumerate(asked):
        expected = alone(bart, bart.encode(text)[0], {"num_beams": beams, "max_new_tokens": 5})
        assert_same(log.outputs(number)[0], expected)


def test_truncate_applies_to_its_own_request(bart: Runner, gpt2: Runner) -> None:
    for runner in (bart, gpt2):
        settings = {"max_new_tokens": 40}
        requests = [
            text_request(0, "snow " * 90, truncate=True, **settings),
            text_request(1, "a small town", **settings),
            text_request(2, "snow " * 90, truncate="false", **settings),
        ]
        log = run(runner, requests)
        tokens, cut = runner.encode("snow " * 90, truncate=True, **settings)
        assert cut and log.stats.prefills == 1
        assert_same(log.outputs(0)[0], alone(runner, tokens, settings))
        assert_same(log.outputs(1)[0], alone(runner, runner.encode("a small town")[0], settings))
        side = "left" if runner is gpt2 else "right"
        assert [(own.cut, own.cut_side) for own in log.outputs(0) + log.outputs(1)] == [(cut, side), (0, None)]
        assert list(log.refusals()) == [2]
        assert "longer than" in log.refusals()[2].message and "truncate" in log.refusals()[2].message


# ---- cancellation ----


def test_request_cancelled_before_its_batch_is_not_run(bart: Runner) -> None:
    settings = {"max_new_tokens": 5}
    requests = [text_request(number, text, **settings) for number, text in enumerate(SENTENCES)]
    log = run(bart, requests, cancelled=lambda: {1, 3})
    assert {event.number for event in log.events} == {0, 2}
    assert log.stats.samples == 2
    for number in (0, 2):
        assert_same(log.outputs(number)[0], alone(bart, bart.encode(SENTENCES[number])[0], settings))
    nothing = run(bart, requests, cancelled=lambda: range(4))
    assert (nothing.events, nothing.stats.prefills, nothing.stats.steps) == ([], 0, 0)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_request_cancelled_while_running_changes_no_other(bart: Runner, num_beams: int) -> None:
    settings = {"num_beams": num_beams, "max_new_tokens": 12, "min_new_tokens": 12}
    rows = [[5, 6, 2], [77, 8, 2], [9, 8, 7, 2], [50, 60, 70, 80, 2]]
    requests = [ids_request(0, *rows[:2], **settings), ids_request(1, *rows[2:], **settings)]
    asked = 0

    def cancelled() -> set[int]:
        nonlocal asked
        asked += 1
        return {0} if asked > 4 else set()

    log = run(bart, requests, stream=True, cancelled=cancelled)
    assert log.refusals() == {}
    assert log.outputs(0) == []
    assert len(log.tokens(0)) == 4 if num_beams == 1 else len(log.tokens(0)) < 4
    for row in range(2):
        assert_same(log.outputs(1)[row], alone(bart, rows[2 + row], settings))
    assert log.stats.steps == 12
    asked = 0
    log = run(bart, requests[:1], cancelled=cancelled)
    assert (log.events, log.stats.steps) == ([], 5)


# ---- streams ----


def test_streamed_tokens_are_in_order_and_join_to_the_row(bart: Runner, gpt2: Runner) -> None:
    for runner in (bart, gpt2):
        settings = {"num_beams": 1, "max_new_tokens": 12}
        requests = [text_request(number, text[:25], text[30:40], **settings) for number, text in enumerate(SENTENCES)]
        log = run(runner, requests, stream=True)
        assert log.stats.prefills == 1
        for number in range(4):
            for row, output in enumerate(log.outputs(number)):
                tokens = log.tokens(number, row)
                given = 0 if runner.decoder_only else 1
                assert [token.token for token in tokens] == output.sequences[0][given:]
                assert ["".join(token.text for token in tokens)] == output.texts
                assert len(output.texts[0]) > 5
        # each token comes before the next one of any row
        steps = [(event.number, event.row) for event in log.events][: 4 * 2]
        assert len(set(steps)) == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 2, "min_new_tokens": 12},
        {"num_beams": 3, "do_sample": True, "seed": 2},
        {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"do_sample": True, "seed": 1, "max_new_tokens": 1},
    ],
)
def test_beams_stream_their_common_beginning(bart: Runner, gpt2: Runner, settings: dict[str, Any]) -> None:
    for runner in (bart, gpt2):
        requests = [text_request(number, *SENTENCES, **{"max_new_tokens": 12, **settings}) for number in range(2)]
        log = run(runner, requests, stream=True)
        places = {id(event): place for place, event in enumerate(log.events)}
        for number in range(2):
            for row, output in enumerate(log.outputs(number)):
                tokens = log.tokens(number, row)
                assert [token.token for token in tokens] == output.sequences[0][0 if runner.decoder_only else 1 :]
                assert ["".join(token.text for token in tokens)] == output.texts
                rows = [event for event in log.events if (event.number, getattr(event, "row", -1)) == (number, row)]
                assert isinstance(rows[-1], Row) and places[id(rows[-1])] > places[id(tokens[-1])]


def test_several_sequences_are_not_streamed(bart: Runner) -> None:
    for settings in ({"num_beams": 2}, {"do_sample": True}):
        request = text_request(0, SENTENCES[0], num_return_sequences=2, max_new_tokens=5, **settings)
        log = run(bart, [request], stream=True)
        assert len(log.events) == 1 and log.outputs(0)


def test_the_text_of_a_given_beginning_is_streamed(bart: Runner) -> None:
    """The pieces join to the whole text, and the tokens are the new ones."""
    for length in (1, 6):
        request = text_request(0, SENTENCES[0], max_new_tokens=length, num_beams=1, decoder_input_text="a small")
        log = run(bart, [request], stream=True)
        (output,), tokens = log.outputs(0), log.tokens(0)
        assert ["".join(token.text for token in tokens)] == output.texts and (output.texts or [""])[0].startswith(
            "a sm"
        )
        assert [token.token for token in tokens] == output.sequences[0][-len(tokens) :] and len(tokens) == length


def test_streamed_characters_of_several_tokens_are_whole(bart: Runner, tmp_path: Path) -> None:
    """A tokenizer of bytes, half of whose tokens end or begin in the middle of an e with an accent."""
    first, second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("\u00e9")[0][0]
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ["<s>", "<pad>", "</s>", *(letter + first for letter in letters), *(second + letter for letter in letters)]
    names += [one + other for one in letters for other in "ow"]
    vocabulary = {name: place for place, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names[:3])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    runner = Runner(bart.bundle, bart.model.runtime, _TokenizersCodec(str(tmp_path / "tokenizer.json")))
    generator = np.random.default_rng(0)
    settings = {"max_new_tokens": 20, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2}
    log = run(runner, [ids_request(0, *generator.integers(3, 100, (24, 9)).tolist(), **settings)], stream=True)
    whole = 0
    for row, output in enumerate(log.outputs(0)):
        assert output.texts
        pieces = [token.text for token in log.tokens(0, row)]
        assert not any(piece.endswith(HALF) for piece in pieces[:-1])
        assert output.texts == ["".join(pieces)]
        whole += "\u00e9" in output.texts[0]
    assert whole > 3


# ---- audio ----


def test_windows_of_an_audio_file_are_joined(whisper: Runner, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    settings: tuple[dict[str, Any], ...] = (
        {"max_new_tokens": 8},
        {"max_new_tokens": 8, "num_beams": 3, "language": "de", "task": "translate"},
    )
    waveforms = [chirp(2.5), chirp(0.4, high_hz=900), chirp(1.0, low_hz=2000, high_hz=100)]
    waveforms = [np.round(waveform * 32768).astype(np.int16) for waveform in waveforms]  # int16, as in a WAV file
    waves = [waveform.astype(np.float32) / 32768 for waveform in waveforms]
    for own in settings:
        requests = [audio_request(0, *waves[:2], **own), audio_request(1, waves[2], **own)]
        log = run(whisper, requests, stream=True)
        outputs = [*log.outputs(0), *log.outputs(1)]
        for place, waveform in enumerate(waveforms):
            path = str(tmp_path / f"{place}.wav")
            soundfile.write(path, waveform, RATE_HZ)
            assert_same(outputs[place], transcribe(whisper, read_features(whisper, path), **own))
            assert outputs[place].texts == whisper.transcribe([path], **own)
        assert log.stats.samples == 3 + 1 + 1
        split = run(whisper, requests, max_rows=own.get("num_beams", 1) * 2)
        assert split.stats.steps > log.stats.steps
        for found, expected in zip([*split.outputs(0), *split.outputs(1)], outputs, strict=True):
            assert_same(found, expected)
        assert outputs[0].scores is None
        # windows of one batch have no common order of tokens
        assert log.tokens(0, 0) == []
        said = log.tokens(0, 1)
        if "num_beams" not in own:
            assert [token.token for token in said] == outputs[1].sequences[0][-len(said) :] and len(said) > 3
            assert outputs[1].texts == ["".join(token.text for token in said)]


def test_timestamps_are_not_streamed_as_text(whisper: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text is that of WhisperTokenizer, which takes timestamps out of the text."""
    tokenizer = whisper_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(whisper.model.text, "_codec", _TokenizersCodec(str(tmp_path / "tokenizer.json")))
    log = run(whisper, [audio_request(0, CHIRP, max_new_tokens=20)], stream=True)
    said = log.tokens(0)
    assert any(token.token > 55 for token in said)
    (output,) = log.outputs(0)
    assert output.texts == [tokenizer.decode(output.sequences[0], skip_special_tokens=True)]
    assert output.texts == ["".join(token.text for token in said)]


def test_long_texts_are_tokenized_while_others_take_steps(bart: Runner) -> None:
    reports: list[Report] = []
    running = RunningRequests(bart.model, max_rows=16, send=reports.append)
    for request in (text_request(1, "a town " * 9000, truncate=True), text_request(2, "a town")):
        running.add(request)
    while running.active:
        running.turn()
    events = [event for report in reports for event in report.events]
    assert [event.number for event in events if isinstance(event, Reading) and not event.ended] == [1]
    assert sorted(event.number for event in events if isinstance(event, Row)) == [1, 2]


def test_large_settings_of_strangers_are_not_kept(bart: Runner) -> None:
    """Each request bans other words, 20 kB of them; what a worker keeps of them does not grow with the requests."""

    def request(number: int) -> Request:
        words = [[5 + (number + place) % 80, 5 + place % 80, 5 + place // 80] for place in range(1500)]
        return text_request(number, "a town", bad_words_ids=words, num_beams=1, max_new_tokens=2)

    def held(numbers: range) -> int:
        """Bytes that requests leave behind."""
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in numbers:
            run(bart, [request(number)])
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        held(range(40))
        assert held(range(40, 52)) < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_text_that_is_tokenized_for_long_holds_nobody_up(bart: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbour is answered while it is tokenized."""
    encode, answered, events = type(bart.model.text).encode, threading.Event(), list[Any]()

    def slow(own: Any, source: Any, **settings: Any) -> Any:
        if len(source) > QUICK_BYTES:
            assert answered.wait(60)
        return encode(own, source, **settings)

    def cancelled() -> set[int]:
        if any(isinstance(event, Row) for event in events):
            answered.set()
        return set()

    monkeypatch.setattr(type(bart.model.text), "encode", slow)
    long = text_request(0, "a town " * 700, truncate=True, max_new_tokens=2)
    log = run(bart, [long, text_request(1, "a town", max_new_tokens=2)], cancelled=cancelled, seen=events)
    assert [event.number for event in log.events if isinstance(event, Row)] == [1, 0]
