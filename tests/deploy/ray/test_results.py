"""The folder of results: what it must agree with, and files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.options import resolve_options
from tightbeam.deploy import InputError
from tightbeam.deploy.ray.input_data import InputFile
from tightbeam.deploy.ray.results import open_results, remove_unfinished, write_result
from tightbeam.deploy.run_model.record import settings_in_json
from tightbeam.deploy.tries.build import build_trie

RUN: dict[str, Any] = {"bundle": "abc", "num-beams": 4, "eos": (2, 3)}
FILES = [InputFile("a.txt", Path("/a.txt"), "text", 10, 2, "d1")]


def test_the_same_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "results"
    for _ in range(2):
        open_results(folder, RUN, FILES)
    open_results(folder, RUN, [InputFile("b.txt", Path("/b.txt"), "text", 1, 1, "d2")])
    open_results(folder, RUN, FILES)
    assert [file.name for file in folder.iterdir()] == ["_run.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bundle": "x", "num-beams": 1}, "holds results of another bundle"),
        ({"num-beams": 1}, r"other settings \(num-beams is 4 there, 1 here\)"),
        ({"new": True}, r"\(new is null there, true here\)"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    open_results(tmp_path, RUN, FILES)
    with pytest.raises(InputError, match=message):
        open_results(tmp_path, {**RUN, **change}, FILES)


def test_changed_input_is_refused(tmp_path: Path) -> None:
    open_results(tmp_path, RUN, FILES)
    with pytest.raises(InputError, match=r"a\.txt has changed since"):
        open_results(tmp_path, RUN, [InputFile("a.txt", Path("/a.txt"), "text", 10, 2, "other")])


@pytest.mark.parametrize("content", [b"", b"[]", b'{"run": 1, "files": {}}', b"\xff"])
def test_a_damaged_record_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_run.json").write_bytes(content)
    with pytest.raises(InputError, match=r"_run\.json is damaged"):
        open_results(tmp_path, RUN, FILES)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(InputError, match="is not empty, and holds no results"):
        open_results(tmp_path, RUN, FILES)
    with pytest.raises(InputError, match="is a file; --ray writes a folder"):
        open_results(tmp_path / "notes", RUN, FILES)


def test_half_written_files_are_removed(tmp_path: Path) -> None:
    """Those of the run that has ended, and of others long ago; another run of the same folder may be writing."""
    for name in ("a/.b.jsonl-00001.jsonl.partial-run1-x", ".c.partial-run1-y", "a/b.jsonl-00000.jsonl", "_run.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / ".d.partial-run2-x").touch()
    (tmp_path / "a" / ".e.partial-run3-x").touch()
    os.utime(tmp_path / "a" / ".e.partial-run3-x", (0, 0))
    remove_unfinished(tmp_path, "run1")
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"a/b.jsonl-00000.jsonl", "a/.d.partial-run2-x", "_run.json"}


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(tmp_path / "inside" / "a", b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        write_result(tmp_path / "inside" / "a", b"new")
    assert {file.name: file.read_bytes() for file in (tmp_path / "inside").iterdir()} == {"a": b"old"}


def test_results_have_the_permissions_of_a_new_file(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_result(tmp_path / "a", b"secret")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_every_setting_can_be_recorded(tmp_path: Path) -> None:
    defaults = {"decoder_start_token_id": 2, "eos_token_id": [2, 3], "pad_token_id": 1}

    def recorded(**settings: Any) -> dict[str, Any]:
        options = resolve_options(defaults, settings, vocab_size=50, max_positions=20)
        return settings_in_json(options)

    runs = [
        recorded(bad_words_ids=[[4], [5, 6]]),
        recorded(do_sample=True, seed=3, top_k=0),
        recorded(do_sample=True, seed=4, top_k=0),
        recorded(return_token_scores=True, return_alternatives=2),
        recorded(num_beams=4, num_beam_groups=2, diversity_penalty=1.0),
        recorded(num_beams=2, force_words_ids=[[5, 6], [[7], [8, 9]]]),
        recorded(trie=build_trie([[5, 6], [7]])),
        recorded(trie=build_trie([[5, 6], [8]])),
    ]
    for number, run in enumerate(runs):
        open_results(tmp_path / str(number), run, FILES)
        open_results(tmp_path / str(number), run, FILES)
        for other in runs[:number] + runs[number + 1 :]:
            with pytest.raises(InputError, match="other settings"):
                open_results(tmp_path / str(number), other, FILES)
