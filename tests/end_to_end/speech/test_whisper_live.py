"""Raw samples as input of `run-model`, and recordings that are transcribed while they come through a pipe."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from support.audio import RATE_HZ, Array, chirp, encoded
from support.bundles.cache import BundleCache
from support.recordings_command import load_words, run
from tightbeam.deploy import Runner
from tightbeam.deploy.audio.stored_features import StoredFeatures
from tightbeam.deploy.inputs.files.sound_source import RawFormat, SoundSource
from tightbeam.deploy.inputs.output import TextSegment
from tightbeam.deploy.inputs.run import FoundSegments
from tightbeam.deploy.inputs.windows import run_windows
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.run_model import input_files
from tightbeam.deploy.run_model.subtitles import subtitles

soundfile = pytest.importorskip("soundfile")
FORMAT = RawFormat(RATE_HZ, "f32le")


@pytest.fixture
def runner(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The runner that the command loads."""
    return load_words(bundles, monkeypatch)


@pytest.fixture
def wave() -> Array:
    """A recording of several windows, whose loudest sound comes first."""
    return np.concatenate([2 * chirp(0.5), chirp(2.4, low_hz=300)])


def test_raw_samples_are_recordings(runner: Runner, wave: Array, tmp_path: Path) -> None:
    parts = runner.transcribe_segments([wave])[0]
    (tmp_path / "talk.pcm").write_bytes(wave.tobytes())
    raw = ("--sample-rate", str(RATE_HZ), "--sample-format", "f32le", "--format", "srt")
    for name, given in ((str(tmp_path / "talk.pcm"), None), (str(tmp_path), None), ("-", wave.tobytes())):
        assert run(name, *raw, given=given)[0] == subtitles(parts, "srt")
    assert run("-", *raw, "-o", str(tmp_path / "talk.srt"), given=wave.tobytes())[0] == ""
    assert (tmp_path / "talk.srt").read_text() == subtitles(parts, "srt")
    alsa = ("--sample-rate", str(RATE_HZ), "--sample-format", "F32_LE", "--format", "srt")
    assert run("-", *alsa, given=wave.tobytes())[0] == subtitles(parts, "srt")
    short = chirp(0.4)
    record = json.loads(run("-", *raw[:4], "--json", given=short.tobytes())[0].splitlines()[-1])
    assert record["text"] == runner.transcribe([short])[0].strip() and "segments" not in record


def test_segments_come_before_the_end_of_the_pipe(runner: Runner, wave: Array) -> None:
    """The writer waits for the first segments before it writes the rest."""
    reader, writer = os.pipe()
    found = threading.Event()

    def write() -> None:
        with open(writer, "wb") as pipe:
            pipe.write(wave[: 2 * RATE_HZ].tobytes())
            pipe.flush()
            assert found.wait(60), "no segment came"
            pipe.write(wave[2 * RATE_HZ :].tobytes())

    thread = threading.Thread(target=write)
    thread.start()
    segments: list[TextSegment] = []
    with open(reader, "rb") as pipe:
        for item in run_windows(runner.model, [SoundSource("pipe", FORMAT, pipe)], batch_size=2, settings={}):
            if isinstance(item, FoundSegments):
                segments += item.segments
                found.set()
            else:
                assert item.failure is None and item.result.seconds == pytest.approx(len(wave) / RATE_HZ)
    thread.join()
    assert segments == runner.transcribe_segments([wave])[0] and len(segments) > 2


def test_sound_that_breaks_while_it_comes_fails_alone(runner: Runner, wave: Array) -> None:
    broken = wave.copy()
    broken[int(2.2 * RATE_HZ) :] = np.nan
    sources = [SoundSource("pipe", FORMAT, io.BytesIO(broken.tobytes())), wave]
    items = list(run_windows(runner.model, sources, batch_size=2, settings={}))
    failed, done = (item for item in items if not isinstance(item, FoundSegments))
    assert "pipe holds NaN or infinity" in str(failed.failure)
    assert done.result.segments == runner.transcribe_segments([wave])[0]
    assert isinstance(items[0], FoundSegments), "the windows before it were transcribed"


def test_features_on_demand_are_those_of_the_whole(runner: Runner, wave: Array) -> None:
    log_mel = runner.log_mel
    assert log_mel is not None
    whole = StoredFeatures(log_mel, [wave])
    live = StoredFeatures(log_mel, (wave[start : start + 700] for start in range(0, len(wave), 700)), live=True)
    assert live.frames == 0 and live.seconds == 0
    for first in range(0, whole.frames, 37):
        reached = live.reach(first + log_mel.frames)
        assert min(first + log_mel.frames, whole.frames) <= reached <= whole.frames
        count = min(log_mel.frames, reached - first)
        # In float32, whose sums depend on how many frames a product has at once.
        np.testing.assert_allclose(live.window(first, count), whole.window(first, count), atol=3e-5)
    assert (live.frames, live.own_frames, live.seconds) == (whole.frames, whole.own_frames, whole.seconds)
    assert live.loud_frames(0, whole.frames, -30) == whole.loud_frames(0, whole.frames, -30) > 0


def test_a_file_is_streamed_from_a_pipe(
    runner: Runner, wave: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = runner.transcribe_segments([wave])[0]
    monkeypatch.setattr(input_files, "_standard_input", lambda: Pipe(content))
    monkeypatch.setattr(input_files.tempfile, "TemporaryDirectory", None)
    options = ("--sound-input", "--stream", "--format", "srt")
    content = wav_of(wave, "WAV")
    assert run(*options, given=b"")[0] == subtitles(parts, "srt")
    content = content[:-100]
    assert "note: standard input: its end is missing: the file breaks off after 2.9 s" in run(*options, given=b"")[1]
    content = wav_of(wave, "FLAC", "PCM_24")
    flac = tmp_path / "talk.flac"
    flac.write_bytes(content)
    assert run(*options, given=b"")[0] == run(str(flac), "--format", "srt")[0]
    monkeypatch.undo()
    monkeypatch.setattr(Model, "load", lambda *args, **options: runner.model)
    monkeypatch.setattr(input_files, "_standard_input", lambda: Pipe(content))
    content = encoded(wave, kind="ipod", codec="alac")
    (tmp_path / "talk.m4a").write_bytes(content)
    assert run(*options, given=b"")[0] == run(str(tmp_path / "talk.m4a"), "--format", "srt")[0]


class Pipe(io.BytesIO):
    """A file that cannot be sought."""

    def seekable(self) -> bool:
        return False


def wav_of(wave: Array, kind: str, subtype: str = "FLOAT") -> bytes:
    """The content of an audio file."""
    data = io.BytesIO()
    soundfile.write(data, wave, RATE_HZ, format=kind, subtype=subtype)
    return data.getvalue()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("-", "--sample-rate", "16000", "--sample-format", "s8"),
            "pass one of u8, s16le, s32le, f32le",
        ),
        (("-", "--sample-format", "u8"), "are for raw samples; pass --sample-rate, too"),
        (("-", "a.pcm", "--sample-rate", "16000"), "--sample-rate with - reads one recording from standard input"),
        (("--sound-input", "--sample-rate", "16000"), "does not go with --sound-input or --json-input"),
        (("a.pcm", "--sample-rate", "16000", "--ray"), "--sample-rate are not for --ray; leave them out"),
        (("-", "--sample-rate", "16000"), "standard input is empty; expected at least one sample"),
    ],
)
def test_options_that_do_not_fit(runner: Runner, options: tuple[str, ...], expected: str) -> None:
    assert expected in run(*options, given=b"", code=1)[1]
