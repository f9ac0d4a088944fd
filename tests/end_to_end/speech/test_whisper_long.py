"""Whole recordings: the tokens of transformers' long-form ``generate``, window by window and over many recordings."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from support.audio import RATE_HZ, chirp, window_recordings
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.checkpoints.timestamps import generate, with_timestamps
from support.loud_speech import Loud
from support.references.kept import kept
from support.serving.triton_requests import run
from support.slow_cases import slow_unless
from support.tolerance import allowed, error
from tightbeam.deploy import Runner
from tightbeam.deploy.audio.stored_features import StoredFeatures
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.inputs import windows
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.run import run_inputs
from tightbeam.deploy.inputs.sequential import compression_ratio
from tightbeam.deploy.inputs.windows import WindowReader
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.text.tokenizer import _TokenizersCodec
from tightbeam.graph_passes import PRESETS

Array = Any
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"language": "fr", "task": "translate", "max_new_tokens": 11},
    {"num_beams": 3, "length_penalty": 2.0},
    {"condition_on_prev_tokens": True},
    {"condition_on_prev_tokens": True, "num_beams": 2, "max_length": 20},
    {"prompt_ids": [52, 7, 8, 11]},
    {"prompt_ids": [52, 7, 8, 11], "language": "de", "condition_on_prev_tokens": True},
    {
        "prompt_ids": [52, 7, 8, 11],
        "condition_on_prev_tokens": True,
        "prompt_condition_type": "all-segments",
        "task": "transcribe",
    },
    {"logprob_threshold": -1.25, "no_speech_threshold": 0.004},
    {"logprob_threshold": -1.25, "no_speech_threshold": 0.004, "num_beams": 3, "condition_on_prev_tokens": True},
)


@pytest.fixture(scope="module")
def recordings() -> list[Array]:
    return window_recordings()


def extractor_of(bundles: BundleCache) -> Any:
    folder = bundles.trace("whisper", generation=WHISPER_GENERATION)[0].path
    return transformers.AutoFeatureExtractor.from_pretrained(folder)


def extracted(bundles: BundleCache, wave: Array) -> torch.Tensor:
    """Features of transformers [1, mels, frames]: of a whole window at least."""
    how = {"truncation": False, "padding": "longest"} if len(wave) > RATE_HZ else {}
    features: torch.Tensor = extractor_of(bundles)(
        wave, sampling_rate=RATE_HZ, return_tensors="pt", **how
    ).input_features
    return features


def expected(bundles: BundleCache, model: Any, wave: Array, settings: dict[str, Any]) -> tuple[list[int], list[Any]]:
    """Tokens, and start and end of each segment in seconds, of transformers for one recording."""
    features, own = extracted(bundles, wave), dict(settings)
    if "prompt_ids" in own:
        own["prompt_ids"] = torch.tensor(own["prompt_ids"])
    if "logprob_threshold" in own:
        own["temperature"] = 0.0  # what None means; transformers compares it with 0

    def make() -> tuple[list[int], list[Any]]:
        found = generate(model, features, return_timestamps=True, return_segments=True, **own)
        return found["sequences"][0].tolist(), [(float(s["start"]), float(s["end"])) for s in found["segments"][0]]

    return kept(make, model, "recording", features.numpy(), settings)


def expect_equal(bundles: BundleCache, model: Any, runner: Runner, waves: list[Array], settings: dict[str, Any]) -> int:
    """Compare recordings that run together with transformers, one by one; returns how many segments there are."""
    count = 0
    for wave, segments in zip(waves, runner.transcribe_segments(waves, batch_size=3, **settings), strict=True):
        tokens, spans = expected(bundles, model, wave, settings)
        assert [token for segment in segments for token in segment.tokens] == tokens, settings
        found = [(segment.start_s, segment.end_s) for segment in segments]
        np.testing.assert_allclose(found, spans, atol=1e-9)
        count += len(segments)
    return count


@pytest.mark.parametrize(
    ("own",), slow_unless([(own,) for own in SETTINGS], lambda own: own in SETTINGS[1::2]), ids=repr
)
def test_recordings_match_generate(bundles: BundleCache, recordings: list[Array], own: dict[str, Any]) -> None:
    model, runner = with_timestamps(bundles, "el")
    assert expect_equal(bundles, model, runner, recordings, own) > len(recordings)


@pytest.mark.parametrize(
    ("variant",), slow_unless([(name,) for name in PRESETS], lambda name: name in ("dedup", "hybrid"))
)
def test_every_variant_matches_generate(bundles: BundleCache, recordings: list[Array], variant: str) -> None:
    model, runner = with_timestamps(bundles, variant)
    assert expect_equal(bundles, model, runner, recordings[:2], SETTINGS[4]) > 2


def test_windows_that_are_done_are_not_kept(bundles: BundleCache, recordings: list[Array]) -> None:
    """Their features, and the keys of the alignment heads, would be a gigabyte for three hours."""
    runner = with_timestamps(bundles, "el")[1]
    opened = WindowReader(runner.model, {"return_timestamps": True}).read(1, recordings[0])
    take, left = opened.take, []

    def watched(number: int, result: Any) -> Any:
        further = take(number, result)
        left.append((len(opened.samples), len(opened.found)))
        return further

    opened.take = watched  # type: ignore[method-assign]
    assert len(list(run_inputs(runner.model, [opened], max_rows=1))) > 2
    assert len(left) > 2 and max(left) <= (1, 0) and not opened.samples


def test_silent_windows_are_skipped(bundles: BundleCache, recordings: list[Array]) -> None:
    """The thresholds of `SETTINGS` skip some windows, and not all."""
    runner = with_timestamps(bundles, "el")[1]
    plain, skipping = (runner.transcribe_segments(recordings, **own) for own in (SETTINGS[0], SETTINGS[8]))
    assert 0 < sum(map(len, skipping)) < sum(map(len, plain))


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({"temperature": (0.0, 0.6), "logprob_threshold": -1.25}, marks=pytest.mark.slow),
        pytest.param({"temperature": (0.0, 0.3, 0.6), "compression_ratio_threshold": 0.74}, marks=pytest.mark.slow),
        {"temperature": (0.0, 0.4), "logprob_threshold": -1.25, "no_speech_threshold": 0.004},
    ],
    ids=str,
)
def test_attempts_follow_the_thresholds(
    bundles: BundleCache, recordings: list[Array], monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    """With ``top_k=1`` an attempt that samples gives the tokens of greedy search, which are not those of three beams:
    so the tokens show which windows took a second attempt. A high temperature ends the conditioning."""
    model, runner = with_timestamps(bundles, "dedup", top_k=1)
    fallback = type(model).generate_with_fallback

    def with_beams(self: Any, *args: Any, **kwargs: Any) -> Any:  # transformers leaves the beams of the last attempt
        kwargs["generation_config"].num_beams = 3
        return fallback(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "generate_with_fallback", with_beams)
    shared: dict[str, Any] = {"num_beams": 3, "condition_on_prev_tokens": True, "language": "en"}
    plain = [[part.tokens for part in parts] for parts in runner.transcribe_segments(recordings, **shared)]
    found = runner.transcribe_segments(recordings, **shared, **own)
    for wave, segments in zip(recordings, found, strict=True):
        features = extracted(bundles, wave)
        tokens = generate(model, features, return_timestamps=True, **shared, **own)[0].tolist()
        assert [token for segment in segments for token in segment.tokens] == tokens
    assert [[part.tokens for part in parts] for parts in found] != plain


def test_a_seed_repeats_the_attempts_that_sample(bundles: BundleCache, recordings: list[Array]) -> None:
    runner = with_timestamps(bundles, "dedup")[1]
    settings: dict[str, Any] = {"temperature": (0.0, 1.0), "logprob_threshold": -0.1}

    def tokens(waves: list[Array], **more: Any) -> list[Any]:
        return [[part.tokens for part in parts] for parts in runner.transcribe_segments(waves, **settings, **more)]

    together = tokens(recordings, seed=5)
    assert together == [tokens([wave], seed=5)[0] for wave in recordings]
    assert together != tokens(recordings, seed=6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"temperature": -1},
            "temperature=-1 .* is not 0, a number above 0, or a list of these; pass 0, or one",
        ),
        ({"temperature": ()}, r"temperature=\(\) .* is not 0, a number above 0"),
        ({"no_speech_threshold": 0.6}, "no_speech_threshold=0.6 .* needs logprob_threshold"),
        ({"logprob_threshold": "low"}, "logprob_threshold='low' .* is not a number"),
        ({"compression_ratio_threshold": 2.4}, "compression_ratio_threshold=2.4 .* does nothing with one temperature"),
        (
            {"condition_on_prev_tokens": 1},
            "condition_on_prev_tokens=1 .* is neither true nor false; pass True or",
        ),
        ({"prompt_condition_type": "some"}, "prompt_condition_type='some' .* is not a choice"),
        ({"prompt_condition_type": "all-segments"}, "does nothing alone; pass condition_on_prev_tokens=True too"),
        (
            {"prompt_ids": [107]},
            r"prompt_ids=\[107\] .* holds 107, which is outside the vocabulary; pass ids from 0",
        ),
        (
            {"silence_threshold_db": 0},
            "silence_threshold_db=0 .* is not a number below 0, full scale; pass a number",
        ),
        ({"min_speech_s": 3}, "min_speech_s=3 .* does nothing without silence_threshold_db"),
        ({"min_speech_s": -3, "silence_threshold_db": -9}, "min_speech_s=-3 .* is not a number of seconds from 0 on"),
        ({"clip_timestamps": [-1, 2]}, r"clip_timestamps=\[-1, 2\] .* is not times in seconds, from 0 on; pass starts"),
        ({"clip_timestamps": "1,nan"}, "clip_timestamps='1,nan' .* is not times in seconds"),
        ({"clip_timestamps": [2, 1]}, "goes back from 2 to 1 s; pass starts and ends in order, such as"),
        ({"clip_timestamps": [0, 2, 1, 3]}, "goes back from 2 to 1 s"),
        ({"clip_timestamps": "1,1"}, "has a clip that ends where it starts, at 1 s"),
        ({"clip_timestamps": []}, "is not times in seconds"),
        (
            {"clip_timestamps": "5"},
            r"the recording ends at 1.20 s, before the clip from 5 s on; pass clip_timestamps within it",
        ),
        ({"vad_parameters": {"threshold": 0.6}}, "does nothing without vad_filter; pass vad_filter=True too"),
        ({"batched_windows": True}, "batched_windows=True .* does nothing without vad_filter"),
        ({"vad_filter": True, "vad_parameters": {"onset": 1}}, "has no setting 'onset'; pass some of threshold, min_"),
        ({"vad_filter": True, "vad_parameters": {"": None}}, "has no setting ''; pass some of threshold, min_"),
        ({"vad_filter": True, "vad_parameters": '{"threshold": 2}'}, "has threshold 2; pass a number from 0.01 to 1"),
        ({"vad_filter": True, "vad_parameters": "0.6"}, "is not an object of settings; pass an object such as"),
        (
            {"vad_filter": True, "batched_windows": True, "condition_on_prev_tokens": True},
            "batched_windows.* condition_on_prev_tokens|condition_on_prev_tokens.* batched_windows",
        ),
        ({"seed": 3}, "seed=3 .* does nothing, since no temperature is above 0"),
        ({"temperature": 0.5, "seed": -3}, "seed=-3 .* is not an integer of at least 0"),
        ({"prompt_ids": list(range(46))}, "prompts of 49 tokens leave none of the model's 48 positions"),
    ],
)
def test_impossible_settings_are_refused(bundles: BundleCache, settings: dict[str, Any], expected: str) -> None:
    runner = with_timestamps(bundles, "el")[1]
    with pytest.raises((GenerationError, InputError), match=expected):
        runner.transcribe([chirp(1.2)], **settings)


@pytest.mark.parametrize(
    ("recordings", "batch_size", "expected"),
    [
        ([chirp(0.2)], 0, "batch_size=0 is not a number of windows; pass 1 or more"),
        ([chirp(0.2)], 2.5, "batch_size=2.5 is not a number of windows"),
        (chirp(0.2), 8, r"recordings is one array of samples, expected a list of recordings; pass \[samples\]"),
        (None, 8, r"recordings is NoneType, expected a list of file names; pass \[path\]"),
        ([[[1.0, 2.0], [3.0]]], 8, "recording 0 has rows of different lengths"),
        ([torch.ones(9, requires_grad=True)], 8, "recording 0 is Tensor, expected an array .*requires grad"),
        ([chirp(0.2), np.ones(9, np.int16)], 8, r"recording 1 is int16 \[9\], .*in -1..1 .divide int16 samples by"),
        ([chirp(0.2), np.full(9, 1e300)], 8, "recording 1: the recording holds NaN or infinity"),
        (["talk.wav", None], 8, "recording 1 is NoneType, expected the name of an audio file, or an array of samples"),
    ],
)
def test_recordings_that_are_none(bundles: BundleCache, recordings: Any, batch_size: Any, expected: str) -> None:
    """None of them waits for ever for room."""
    with pytest.raises(InputError, match=expected):
        with_timestamps(bundles, "el")[1].transcribe(recordings, batch_size=batch_size)


def test_one_window_refuses_settings_of_recordings(bundles: BundleCache) -> None:
    runner = with_timestamps(bundles, "el")[1]
    features = np.zeros((1, 9, 100), np.float32)
    with pytest.raises(GenerationError, match=r"condition_on_prev_tokens is for recordings \(Runner.transcribe\)"):
        runner.generate_from_features(features, condition_on_prev_tokens=True)


def test_compression_ratio_matches_transformers() -> None:
    rng = np.random.default_rng(0)
    for vocabulary in (107, 256, 51865, 70000):
        for tokens in (rng.integers(0, vocabulary, 90), np.full(60, vocabulary - 1), np.zeros(0, np.int64)):
            theirs = transformers.WhisperForConditionalGeneration._retrieve_compression_ratio
            assert compression_ratio(tokens.tolist(), vocabulary) == theirs(torch.from_numpy(tokens), vocabulary)


def test_features_of_a_recording_match_transformers(bundles: BundleCache, recordings: list[Array]) -> None:
    """Whatever the blocks: the whole recording's features, cut into windows."""
    log_mel = with_timestamps(bundles, "el")[1].log_mel
    assert log_mel is not None
    for wave in [*recordings, recordings[0][: RATE_HZ + 1], recordings[0][: RATE_HZ + 160]]:
        naive = extracted(bundles, wave)[0].numpy()
        whole = np.pad(wave.astype(np.float64), (0, max(0, RATE_HZ - len(wave))))
        exact = extractor_of(bundles)._np_extract_fbank_features([whole], "cpu")[0]
        for size in (997, 20_000, 1 << 30):
            recording = StoredFeatures(log_mel, (wave[start : start + size] for start in range(0, len(wave), size)))
            assert recording.frames == naive.shape[1]
            found = np.concatenate([recording.window(first, 1) for first in range(recording.frames)], axis=1)
            found = found.reshape(9, recording.frames, 100)[:, :, 0]
            assert error(found, exact) <= allowed(exact, naive)
            tail = recording.window(recording.frames - 30, 30)
            np.testing.assert_array_equal(tail[:, :30], found[:, -30:])
            assert tail.shape == (9, 100) and not tail[:, 30:].any()
            recording.close()


def test_windows_without_sound_are_not_run(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence in front of a recording, in the midst of it, and alone; a click is shorter than speech."""
    runner = with_timestamps(bundles, "el")[1]
    encode, encoded = OnnxRuntimeCpu._encode, []

    def counted(self: OnnxRuntimeCpu, source: Any, *rest: Any, **named: Any) -> Any:
        encoded.append(len(source))
        return encode(self, source, *rest, **named)

    monkeypatch.setattr(OnnxRuntimeCpu, "_encode", counted)
    silence, tone = np.zeros(2 * RATE_HZ, np.float32), chirp(0.6, high_hz=700)
    click = silence.copy()
    click[RATE_HZ : RATE_HZ + 300] = 0.9
    quiet: dict[str, Any] = {"silence_threshold_db": -45}
    assert runner.transcribe_segments([silence, click], **quiet) == [[], []]
    assert runner.transcribe([silence[:9000]], **quiet) == [""]
    assert not encoded
    assert runner.transcribe_segments([click], **quiet, min_speech_s=0.01)[0] and encoded
    plain = runner.transcribe_segments([np.concatenate([silence, tone])])[0]
    (found,) = runner.transcribe_segments([np.concatenate([silence, tone])], **quiet)
    assert found and found[0].start_s >= 2 and len(found) < len(plain)
    noise = (np.random.default_rng(2).standard_normal(20_000) * 0.1).astype(np.float32)
    assert runner.transcribe_segments([noise], **quiet, min_speech_s=0) == runner.transcribe_segments([noise])


def test_clips_give_what_they_would_alone_at_times_of_the_recording(bundles: BundleCache) -> None:
    """A clip longer than a window, and a short one; a start alone goes up to the end."""
    _, runner = with_timestamps(bundles, "el")
    whole = np.concatenate(window_recordings()[:3])
    samples = [whole[RATE_HZ // 2 : 2 * RATE_HZ], whole[3 * RATE_HZ :]]
    how: dict[str, Any] = {"return_token_timestamps": True}
    alone = [runner.transcribe_segments([own], return_timestamps=True, **how)[0] for own in samples]
    (found,) = runner.transcribe_segments([whole], clip_timestamps="0.5,2,3", **how)
    expected = [
        (own.tokens, own.start_s + begin_s, own.end_s + begin_s, [time_s + begin_s for time_s in own.token_timestamps])
        for begin_s, segments in zip((0.5, 3), alone, strict=True)
        for own in segments
    ]
    assert len(alone[0]) > 1 and len(found) == len(expected)
    for own, (tokens, *times, ends) in zip(found, expected, strict=True):
        assert own.tokens == tokens
        np.testing.assert_allclose([own.start_s, own.end_s, *own.token_timestamps], [*times, *ends], atol=0.011)
    assert (
        runner.transcribe_outputs([whole], clip_timestamps=[0.5, 2, 3])[0].segments
        == runner.transcribe_outputs([whole], clip_timestamps="0.5,2,3")[0].segments
    )
    assert runner.transcribe([whole], clip_timestamps="0") == runner.transcribe([whole])


SPEECH: dict[str, Any] = {
    "vad_filter": True,
    "vad_parameters": {"min_silence_duration_ms": 200, "speech_pad_ms": 0},
    "return_token_timestamps": True,
}


def loud(seed: int, chunks: int) -> Array:
    return (np.random.default_rng(seed).standard_normal(512 * chunks) * 0.1).astype(np.float32)


def test_speech_is_joined_and_its_times_are_those_of_the_recording(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runner = with_timestamps(bundles, "el")
    monkeypatch.setattr(windows, "SpeechDetector", Loud)
    silence = np.zeros(512 * 100, np.float32)
    first, second = loud(1, 40), loud(2, 50)
    (found,) = runner.transcribe_outputs([np.concatenate([silence, first, silence, second, silence])], **SPEECH)
    (joined,) = runner.transcribe_outputs([np.concatenate([first, second])], return_token_timestamps=True)
    assert found.texts == joined.texts and found.sequences == joined.sequences
    assert found.segments and joined.segments and len(joined.segments) > 1
    for own, expected in zip(found.segments, joined.segments, strict=True):
        start_s = min(expected.start_s, 2.88)  # this model puts some times behind the sound
        assert own.start_s == pytest.approx(start_s + (6.4 if start_s >= 1.28 else 3.2))
        assert own.start_s <= own.end_s and (3.2 <= own.end_s <= 4.48001 or 7.68 <= own.end_s <= 9.28001)
    assert {own.start_s > 7 for own in found.segments} == {True, False}
    (quiet,) = runner.transcribe_outputs([silence], **SPEECH)
    assert (quiet.sequences, quiet.segments) == ([[]], [])


def test_batched_windows_give_what_they_would_alone(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts fill a window, the others have one each; all are in the language that the first one finds."""
    _, runner = with_timestamps(bundles, "el")
    monkeypatch.setattr(windows, "SpeechDetector", Loud)
    silence = np.zeros(512 * 20, np.float32)
    parts = [loud(1, 10), loud(2, 12), loud(3, 28), loud(4, 30)]
    recording = np.concatenate([silence, *(sound for part in parts for sound in (part, silence))])
    groups = [np.concatenate(parts[:2]), *parts[2:]]
    how: dict[str, Any] = {"return_timestamps": True, "return_token_timestamps": True, "task": "transcribe"}
    language = runner.transcribe_outputs([groups[0]], **how)[0].language
    alone = [runner.transcribe_segments([own], language=language, **how)[0] for own in groups]
    for together in (1, windows.PARTS_TOGETHER):
        monkeypatch.setattr(windows, "PARTS_TOGETHER", together)
        (found,) = runner.transcribe_outputs([recording], batched_windows=True, **{**SPEECH, **how})
        assert found.language == language and found.segments is not None
        assert [own.tokens for own in found.segments] == [own.tokens for each in alone for own in each]
    begins_s = [0.032 * chunks for chunks in (20 + 10 + 20 + 12 + 20, 20 + 10 + 20 + 12 + 20 + 28 + 20)]
    starts_s = [begin_s + own.start_s for begin_s, each in zip(begins_s, alone[1:], strict=True) for own in each]
    ends_s = [begin_s + 0.032 * chunks for begin_s, chunks in zip(begins_s, (28, 30), strict=True)]
    last = found.segments[len(alone[0]) :]
    for own, start_s in zip(last, starts_s, strict=True):  # times that this model puts behind the sound are its end
        assert own.start_s == pytest.approx(min(start_s, ends_s[start_s >= begins_s[1]]))
        assert own.start_s <= own.end_s <= ends_s[start_s >= begins_s[1]] + 1e-9


def test_speech_of_a_clip(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note on how much is speech, and the seconds of the recording."""
    _, runner = with_timestamps(bundles, "el")
    monkeypatch.setattr(windows, "SpeechDetector", Loud)
    silence = np.zeros(512 * 100, np.float32)
    recording = np.concatenate([silence, loud(1, 60), silence])
    reader = WindowReader(runner.model, {**SPEECH, "clip_timestamps": [4, 6]})
    opened = reader.read(1, recording)
    assert opened.result.notes == ["speech is 1.1 s of 2.0 s"] and opened.result.seconds == pytest.approx(2)
    (done,) = [each for each in run_inputs(runner.model, [opened], max_rows=4) if isinstance(each, OpenInput)]
    assert done.result.seconds == pytest.approx(2)
    assert done.result.segments and all(4 <= own.start_s <= own.end_s <= 5.13 for own in done.result.segments)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A WhisperTokenizer of letters, in the order of `TIMESTAMPS`."""
    letters = [*string.ascii_lowercase, *"0123456789,.!?'-", "\u0120", "\u00c4", "\u00c3"]
    made = transformers.WhisperTokenizer(vocab={letter: place for place, letter in enumerate(letters)}, merges=[])
    names = "startoftranscript en de fr transcribe translate startofprev startoflm nospeech notimestamps".split()
    made.add_tokens([f"<|{name}|>" for name in names], special_tokens=True)
    return made


def with_tokenizer(runner: Runner, tokenizer: Any, folder: Path) -> Runner:
    """The runner with another tokenizer."""
    tokenizer.save_pretrained(folder)
    return Runner(runner.bundle, runner.model.runtime, _TokenizersCodec(str(folder / "tokenizer.json")))


def test_a_prompt_is_the_ids_of_transformers(
    bundles: BundleCache, recordings: list[Array], tokenizer: Any, tmp_path: Path
) -> None:
    """The text becomes the ids of ``get_prompt_ids``, and the tokens those of ``generate`` with them, wherever it is
    given: for the first window and for all of them, in Python and in a request."""
    model, runner = with_timestamps(bundles, "el")
    runner = with_tokenizer(runner, tokenizer, tmp_path)
    plain = runner.transcribe_segments(recordings[:1])
    for text in ("a lindenton tram", "  3 o'clock, Brno! ", "na\u00efve"):
        ids = tokenizer.get_prompt_ids(text)
        assert runner.options(prompt=text).recording.prompt_ids == tuple(ids.tolist())
    for own in ({}, {"condition_on_prev_tokens": True, "prompt_condition_type": "all-segments", "num_beams": 2}):
        found = runner.transcribe_segments(recordings[:1], prompt=text, **own)
        tokens, _ = expected(bundles, model, recordings[0], {"prompt_ids": ids.tolist(), **own})
        assert [token for segment in found[0] for token in segment.tokens] == tokens
        assert found != plain
        parameters = json.dumps({"prompt": text, **own})
        log = run(runner, [Request(0, {"AUDIO": recordings[0][None]}, parameters)])
        assert log.outputs(0)[0].segments == found[0]
        hotwords = {name: value for name, value in own.items() if name != "prompt_condition_type"} | {"hotwords": text}
        assert runner.transcribe_segments(recordings[:1], **hotwords) == found
        log = run(runner, [Request(0, {"AUDIO": recordings[0][None]}, json.dumps(hotwords))])
        assert log.outputs(0)[0].segments == found[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"prompt": "a <|en|> b"},
            r"prompt='a <\|en\|> b' \(from the call\) cannot be tokenized: a part of it is the special token 47; leave",
        ),
        ({"prompt": "  "}, "prompt='  ' .* is not a text; pass one word"),
        ({"hotwords": "a <|en|> b"}, "hotwords='a .* cannot be tokenized: a part of it is the special token 47; leave"),
        ({"hotwords": "a", "prompt": "b"}, "hotwords='a' .* and prompt are the same; leave one out"),
        ({"hotwords": ["a"]}, r"hotwords=\['a'\] .* is not a text"),
        ({"prompt": 3}, "prompt=3 .* is not a text"),
        ({"prompt": "a", "prompt_ids": [52, 3]}, r"prompt='a' .* and prompt_ids=\[52, 3\] are the same; leave one out"),
        ({"decoder_input_text": "a"}, "decoder_input_text='a' .* is not supported for Whisper; leave"),
    ],
)
def test_prompts_that_are_none(
    bundles: BundleCache, tokenizer: Any, tmp_path: Path, settings: dict[str, Any], expected: str
) -> None:
    runner = with_tokenizer(with_timestamps(bundles, "el")[1], tokenizer, tmp_path)
    with pytest.raises(GenerationError, match=expected):
        runner.options(**settings)


def test_a_prompt_needs_a_tokenizer_and_a_whisper(bundles: BundleCache) -> None:
    with pytest.raises(GenerationError, match=r"prompt='a' .* needs a tokenizer, and this bundle has none; pass"):
        with_timestamps(bundles, "el")[1].options(prompt="a")
    with pytest.raises(GenerationError, match=r"prompt='a' .* is for Whisper; remove it"):
        Runner.load(bundles("el", "bart"), threads=1).options(prompt="a")
