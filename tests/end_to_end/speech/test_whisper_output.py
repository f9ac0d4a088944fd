"""Output of `run-model` for recordings: text, JSON with segments, subtitles, progress and the real-time factor."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.recordings_command import load_words, run
from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.output import TextSegment
from tightbeam.deploy.run_model.subtitles import SubtitleWriter, subtitles

soundfile = pytest.importorskip("soundfile")


@pytest.fixture
def runner(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The runner that the command loads."""
    return load_words(bundles, monkeypatch)


@pytest.fixture
def talks(tmp_path: Path) -> list[str]:
    """Two recordings of several windows."""
    names = []
    for index, seconds in enumerate((2.2, 1.4)):
        names.append(str(tmp_path / f"talk{index}.wav"))
        soundfile.write(names[-1], chirp(seconds, low_hz=200 + 500 * index), RATE_HZ, subtype="FLOAT")
    return names


def test_json_has_segments(runner: Runner, talks: list[str]) -> None:
    output, errors = run(*talks, "--json")
    for line, parts in zip(output.splitlines(), runner.transcribe_segments(talks), strict=True):
        record = json.loads(line)
        assert record["tokens"] == [token for part in parts for token in part.tokens]
        assert [own["text"] for own in record["segments"]] == [part.text for part in parts]
        assert [own["start"] for own in record["segments"]] == [round(part.start_s, 2) for part in parts]
        assert record["text"].split() == [word for part in parts for word in (part.text or "").split()]
        assert len(parts) > 1
    assert "3.6 s of sound" in errors and "real-time factor" in errors


def test_settings_of_recordings_from_the_command_line(runner: Runner, talks: list[str]) -> None:
    options = ["--temperature", "0,0.7", "--logprob-threshold", "-1.2", "--no-speech-threshold", "0.004", "--seed", "5"]
    output, _ = run(talks[0], "--json", "--condition-on-prev-tokens", *options)
    settings: dict[str, Any] = {"logprob_threshold": -1.2, "no_speech_threshold": 0.004, "seed": 5}
    settings |= {"temperature": (0.0, 0.7), "condition_on_prev_tokens": True}
    expected = runner.transcribe_segments([talks[0]], **settings)[0]
    assert [own["tokens"] for own in json.loads(output)["segments"]] == [part.tokens for part in expected]
    assert expected and expected != runner.transcribe_segments([talks[0]])[0]
    _, errors = run(talks[0], "--temperature", "warm", code=1)
    assert "temperature='warm' (from the command line) is not 0, a number above 0, or a list" in errors


def test_subtitles_of_one_recording(runner: Runner, talks: list[str], tmp_path: Path) -> None:
    parts = runner.transcribe_segments(talks[:1])[0]
    output, _ = run(talks[0], "--format", "srt")
    assert output == subtitles(parts, "srt")
    assert output.startswith("1\n00:00:00,") and " --> " in output
    run(talks[0], "--format", "vtt", "--output", str(tmp_path / "talk.vtt"))
    assert (tmp_path / "talk.vtt").read_text() == subtitles(parts, "vtt")


def test_subtitles_of_several_recordings(runner: Runner, talks: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "subtitles"
    run(*talks, "--format", "srt", "--output", str(folder))
    for name, parts in zip(talks, runner.transcribe_segments(talks), strict=True):
        assert (folder / f"{Path(name).stem}.srt").read_text() == subtitles(parts, "srt")
    _, errors = run(*talks, "--format", "srt", "--output", str(folder), code=1)
    assert "talk0.srt exists; pass --force to replace it, or another --output" in errors
    run(*talks, "--format", "srt", "--output", str(folder), "--force")


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_streamed_subtitles_are_those_of_the_whole(
    runner: Runner, talks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They are there before the recording is done; of several recordings, each in a file of its own."""
    parts = runner.transcribe_segments(talks)
    written: list[str] = []
    add = SubtitleWriter.add
    monkeypatch.setattr(
        SubtitleWriter, "add", lambda self, segments: written.append(add(self, segments)) or written[-1]
    )
    output, _ = run(talks[0], "--format", kind, "--stream")
    assert output == "".join(written) == subtitles(parts[0], kind)
    assert len([text for text in written if text]) > 1, "expected subtitles of several windows"
    run(talks[0], "--format", kind, "--stream", "--output", str(tmp_path / "one"))
    assert (tmp_path / "one").read_text() == output
    run(*talks, "--format", kind, "--stream", "--output", str(tmp_path / "several"))
    found = [(tmp_path / "several" / f"talk{index}.{kind}").read_text() for index in range(2)]
    assert found == [subtitles(each, kind) for each in parts]
    listed = "\n".join([talks[1], talks[1], talks[0]]).encode()
    _, errors = run("-", "--format", kind, "--stream", "--output", str(tmp_path / "twice"), given=listed, code=1)
    assert f"would hold the results of {talks[1]} and another file" in errors
    assert [(tmp_path / "twice" / f"talk{index}.{kind}").read_text() for index in range(2)] == found


def test_a_streamed_run_that_is_interrupted_leaves_subtitles(
    runner: Runner, talks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = subtitles(runner.transcribe_segments(talks[:1])[0], "srt")
    add = SubtitleWriter.add

    def interrupted(self: SubtitleWriter, segments: list[TextSegment]) -> str:
        if self._count:
            raise KeyboardInterrupt
        return add(self, segments)

    monkeypatch.setattr(SubtitleWriter, "add", interrupted)
    output, errors = run(talks[0], "--format", "srt", "--stream", code=130)
    assert output and whole.startswith(output + "\n") and output.count("-->") < whole.count("-->")
    assert "error: interrupted; the results written so far are whole" in errors


def test_a_streamed_recording_without_subtitles(runner: Runner, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silent.wav", np.zeros(3 * RATE_HZ), RATE_HZ)
    silent = (str(tmp_path / "silent.wav"), "--silence-threshold-db", "-45", "--stream")
    assert [run(*silent, "--format", kind)[0] for kind in ("srt", "vtt")] == ["", "WEBVTT\n"]
    assert run(*silent)[0] == "\n"


def test_streamed_text_is_that_of_the_whole(runner: Runner, talks: list[str]) -> None:
    """Of a long recording by its segments, of a short one by its tokens."""
    for options in ([], ["--num-beams", "2"], ["--no-return-timestamps"]):
        assert run(*talks, *options, "--stream")[0] == run(*talks, *options)[0]
    records = [json.loads(line) for line in run(talks[0], "--json", "--stream")[0].splitlines()]
    pieces = [record["piece"] for record in records[:-1]]
    assert len(pieces) > 1 and "".join(pieces) == records[-1]["text"]


def test_subtitles_of_one_name_are_not_lost(runner: Runner, talks: list[str], tmp_path: Path) -> None:
    """Recordings whose names differ in their folder or suffix alone: an error before anything is run."""
    other = tmp_path / "other" / "talk0.flac"
    other.parent.mkdir()
    soundfile.write(other, chirp(1.1), RATE_HZ)
    folder = tmp_path / "subtitles"
    options = ("--format", "srt", "--output", str(folder), "--force")
    expected = f"talk0.srt would hold the results of {talks[0]} and {other}; rename one"
    assert expected in run(*talks, str(other), *options, code=1)[1]
    listed = "\n".join([*talks, str(other)])
    (tmp_path / "list.txt").write_text(listed)
    assert expected in run(str(tmp_path / "list.txt"), *options, code=1)[1]
    assert not list(folder.iterdir())
    _, errors = run("-", *options, given=listed.encode(), code=1)
    assert f"would hold the results of {other} and another file" in errors
    assert (folder / "talk0.srt").read_text() == subtitles(runner.transcribe_segments(talks[:1])[0], "srt")


def test_a_recording_on_standard_input(runner: Runner, talks: list[str]) -> None:
    for kind in ("WAV", "FLAC", "OGG"):
        sound = io.BytesIO()
        samples, _ = soundfile.read(talks[0], dtype="float32")
        soundfile.write(sound, samples, RATE_HZ, format=kind)
        output, _ = run("--sound-input", given=sound.getvalue())
        assert output.strip() and "w" in output
    assert run("--sound-input", given=Path(talks[0]).read_bytes())[0] == run(talks[0])[0]
    _, errors = run("--sound-input", given=b"no sound", code=1)
    assert (
        "standard input cannot be read as audio (its format is not one that is read, or its header or index is broken "
        "or missing); expected" in errors
    )
    assert "standard input is empty, it has no bytes; expected" in run("--sound-input", given=b"", code=1)[1]
    assert "leave the files out" in run("--sound-input", talks[0], code=1)[1]


def test_a_note_names_the_recording_whose_end_is_missing(runner: Runner, talks: list[str], tmp_path: Path) -> None:
    cut = tmp_path / "cut.mp3"
    soundfile.write(cut, chirp(3.0), RATE_HZ, format="MP3")
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    output, errors = run(talks[0], str(cut), "--json")
    assert len(output.splitlines()) == 2 and "error" not in output
    assert f"note: {cut}: sound is missing: the file has 1.4 s of 3.0 s" in errors
    _, errors = run("--sound-input", given=cut.read_bytes())
    assert "note: standard input: sound is missing" in errors


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
def test_the_name_of_a_recording_is_any_bytes(runner: Runner, talks: list[str], tmp_path: Path) -> None:
    """On the command line and in a list, beside one that is not there; its subtitles have the same name."""
    name = os.fsencode(tmp_path) + b"/caf\xe9\n.wav"
    Path(os.fsdecode(name)).write_bytes(Path(talks[0]).read_bytes())
    text = run(talks[0])[0]
    assert run(os.fsdecode(name), talks[1])[0].splitlines()[0] == f"{tmp_path}/caf\\udce9\\n.wav\t{text.strip()}"
    run(os.fsdecode(name), talks[1], "--format", "srt", "--output", str(tmp_path / "shown"))
    assert Path(os.fsdecode(os.fsencode(tmp_path) + b"/shown/caf\xe9\n.srt")).exists()
    listed = os.fsencode(tmp_path) + b"/\xe9.wav"
    Path(os.fsdecode(listed)).write_bytes(Path(talks[0]).read_bytes())
    output, errors = run("-", given=(listed + b"\n") * 10 + b"\xe8.wav\n", code=1)
    assert output == text * 10 + "\n"
    _, named = run(os.fsdecode(b"\xe8.wav"), talks[0], code=1)
    assert "error: b'\\xe8.wav' is not UTF-8; expected the name of an audio file" in named
    assert "line 11: b'\\xe8.wav\\n' is not UTF-8; expected the name of an audio file" in errors


def test_an_error_of_settings_names_its_recording(runner: Runner, talks: list[str], tmp_path: Path) -> None:
    """One of two is longer than a window."""
    soundfile.write(tmp_path / "short.wav", chirp(0.5), RATE_HZ)
    short = str(tmp_path / "short.wav")
    output, errors = run(short, talks[0], "--json", "--return-token-scores", code=1)
    assert f"error: {talks[0]}: return_token_scores=True is for recordings of one window" in errors
    assert "text" in json.loads(output.splitlines()[0])


def test_empty_names_and_broken_text_are_refused(runner: Runner, talks: list[str]) -> None:
    assert "error: no file is named; pass a text file" in run("", code=1)[1]
    for options in ((), ("--format", "srt")):
        assert "error: no file is named; pass another --output" in run(talks[0], *options, "--output", "", code=1)[1]
    assert (
        "prompt='caf\\udce9' (from the command line) holds half a character"
        in run(talks[0], "--prompt", "caf\udce9", code=1)[1]
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-o", "a.srt"), "--output a.srt is for subtitles; pass --format srt, or another --output"),
        (("-o", "b/A.VTT"), "--output b/A.VTT is for subtitles; pass --format vtt"),
        (("--format", "doc"), "--format doc is unknown; pass txt, json, srt, vtt or tsv"),
        (("--format", "srt", "--json"), "--json and --format srt are two formats; leave one out"),
        (("--format", "srt", "--no-return-timestamps"), "needs timestamps; leave --no-return-timestamps out"),
    ],
)
def test_formats_that_cannot_be_written(
    runner: Runner, talks: list[str], options: tuple[str, ...], expected: str
) -> None:
    assert expected in run(talks[0], *options, code=1)[1]
    assert "needs --output FOLDER" in run(*talks, "--format", "vtt", code=1)[1]
    runner.model.text._codec = None
    assert "needs text, and this bundle has no tokenizer; pass --json" in run(talks[0], "--format", "vtt", code=1)[1]


def test_times_and_text_of_subtitles() -> None:
    parts = [
        TextSegment(0.0, 1.2, [], " a <b>\nand & c "),
        TextSegment(2.0, 2.0, [], "  "),
        TextSegment(3599.9995, 36000.5, [], "d"),
    ]
    assert subtitles(parts, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,200\na <b> and & c\n\n2\n01:00:00,000 --> 10:00:00,500\nd\n"
    )
    assert subtitles(parts, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.200\na &lt;b&gt; and &amp; c\n\n01:00:00.000 --> 10:00:00.500\nd\n"
    )
    assert (subtitles([], "srt"), subtitles([], "vtt")) == ("", "WEBVTT\n")


def test_a_recording_of_another_rate_and_several_channels(runner: Runner, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    wave = chirp(1.3, 44100)
    soundfile.write(tmp_path / "s.flac", np.stack([wave, wave], axis=1), 44100)
    parts = runner.transcribe_segments([str(tmp_path / "s.flac")])[0]
    assert parts and parts[-1].end_s <= 3
