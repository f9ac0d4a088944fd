"""Folders and patterns of recordings as input of `run-model`, and folders of results."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.audio import RATE_HZ, chirp, encoded
from support.bundles.cache import BundleCache
from support.recordings_command import load_words, run
from tightbeam.deploy import Runner
from tightbeam.deploy.run_model.subtitles import subtitles

soundfile = pytest.importorskip("soundfile")


@pytest.fixture
def runner(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The runner that the command loads."""
    return load_words(bundles, monkeypatch)


NAMES = ("b.wav", "sub/a.flac", "sub/b.ogg")


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder of recordings with other files in it; the present folder is the one around it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks" / "sub").mkdir(parents=True)
    (tmp_path / "talks" / ".cache").mkdir()
    for index, name in enumerate(NAMES):
        soundfile.write(tmp_path / "talks" / name, chirp(1.3 - 0.4 * index, low_hz=200 + 500 * index), RATE_HZ)
    soundfile.write(tmp_path / "talks" / ".cache" / "c.wav", chirp(0.3), RATE_HZ)
    (tmp_path / "talks" / "notes.txt").write_text("no name of a file\n")
    return [os.path.join("talks", name) for name in NAMES]


def test_a_folder_is_its_recordings_and_text_has_their_names(runner: Runner, talks: list[str]) -> None:
    texts = runner.transcribe(talks)
    assert all(texts)
    assert run("talks")[0] == run("talks/")[0] == "".join(f"{n}\t{t}\n" for n, t in zip(talks, texts, strict=True))
    records = [json.loads(line) for line in run("talks", "--json")[0].splitlines()]
    assert [(record["file"], record["text"]) for record in records] == list(zip(talks, texts, strict=True))
    assert run(talks[0])[0] == f"{texts[0]}\n", "one recording needs no name"
    Path("list.txt").write_text("\n".join(talks))
    assert run("list.txt")[0].splitlines() == texts, "the list has the names"


def test_quoted_patterns_are_expanded(runner: Runner, talks: list[str]) -> None:
    texts = dict(zip(talks, runner.transcribe(talks), strict=True))
    for pattern, names in {"talks/*.wav": talks[:1], "talks/sub/*": talks[1:], "talks/**/[ab].*": talks}.items():
        lines = [texts[names[0]]] if len(names) == 1 else [f"{name}\t{texts[name]}" for name in names]
        assert run(pattern)[0].splitlines() == lines
    assert "error: no file matches talks/*.aif; pass the names of files" in run("talks/*.aif", code=1)[1]
    os.rename(talks[0], "talks/[a]*.wav")
    assert run("talks/[a]*.wav")[0] == f"{texts[talks[0]]}\n", "a file of this name is no pattern"


def test_each_recording_has_its_own_file_in_a_folder(runner: Runner, talks: list[str]) -> None:
    texts, parts = runner.transcribe(talks), runner.transcribe_segments(talks)
    stems = ("b", "sub/a", "sub/b")
    assert run("talks", "-o", "out/")[0] == ""
    assert [Path(f"out/{stem}.txt").read_text() for stem in stems] == [f"{text}\n" for text in texts]
    run("talks", "-o", "out", "--format", "json")
    found = [json.loads(Path(f"out/{stem}.json").read_text()) for stem in stems]
    assert [record["text"] for record in found] == texts
    for kind in ("srt", "tsv"):
        run("talks", "-o", "new/deep/", "--format", kind)
        assert [Path(f"new/deep/{stem}.{kind}").read_text() for stem in stems] == [
            subtitles(each, kind) for each in parts
        ]
    run(talks[0], "-o", "one/", "--format", "txt")
    assert Path("one/b.txt").read_text() == f"{texts[0]}\n"
    run(talks[0], "-o", ".", "--format", "txt")
    assert Path("b.txt").read_text() == f"{texts[0]}\n"
    assert "out/b.txt exists; pass --force to replace it" in run(talks[0], "-o", "out", code=1)[1]
    run(talks[0], "-o", "out", "--force")
    assert parts[0] and subtitles(parts[0], "tsv").splitlines()[1].split("\t")[2] == (parts[0][0].text or "")


def test_results_that_would_share_a_file_run_nothing(runner: Runner, talks: list[str]) -> None:
    soundfile.write("talks/b.flac", chirp(0.4), RATE_HZ)
    _, errors = run("talks", "-o", "out/", code=1)
    assert "out/b.txt would hold the results of talks/b.flac and talks/b.wav; rename one" in errors
    assert not list(Path("out").iterdir())


def test_folders_that_cannot_be_read_or_written(runner: Runner, talks: list[str]) -> None:
    Path("empty").mkdir()
    assert "the folder empty has no sound files; pass another folder" in run("empty", code=1)[1]
    assert "talks is a folder" in run("talks", "--json-input", "file", code=1)[1]
    assert "cannot make the folder talks/notes.txt/" in run(talks[0], "-o", "talks/notes.txt/", code=1)[1]
    assert "--output the name of a file" not in run(talks[0], "-o", "talks/notes.txt", "--force")[1]


def test_videos_and_recordings_of_telephones(runner: Runner, talks: list[str]) -> None:
    """Beside the others of their folder; one without sound is named."""
    wave = chirp(1.3, high_hz=700)
    for name, (kind, codec) in {
        "a.m4a": ("ipod", "alac"),
        "a.mkv": ("matroska", "flac"),
        "a.mov": ("mov", "pcm_s16le"),
    }.items():
        Path(name).write_bytes(encoded(wave, kind=kind, codec=codec, video=kind != "ipod"))
    texts = runner.transcribe(["a.m4a", "a.mkv", "a.mov", wave])
    assert len({*texts[:3]}) == 1
    Path("films").mkdir()
    Path("films/a.mp4").write_bytes(encoded(kind="mp4", codec="aac", video=True))
    Path("films/b.mkv").write_bytes(Path("a.mkv").read_bytes())
    output, errors = run("films", code=1)
    assert output == f"films/a.mp4\t\nfilms/b.mkv\t{texts[0]}\n"
    assert "error: films/a.mp4 cannot be read as audio (it has video and no sound); expected a sound or video" in errors
