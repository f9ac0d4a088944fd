"""Runs that go on where another was cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.commands import SHORT, Command, caller

ARGUMENTS = (*SHORT, "--num-beams", "3", "--threads", "1")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_bytes(
        b"".join(line + b"\n" for line in (*(text.encode() for text in SENTENCES), b" ", b"\xff", b"a town"))
    )
    return path


@pytest.mark.parametrize("returned", [1, 2])
def test_a_run_cut_anywhere_is_completed(
    bundle: Path, texts: Path, tmp_path: Path, call: Command, returned: int
) -> None:
    """Whole results are kept, a half one is written again, an error counts as a result."""
    output = tmp_path / "out.txt"
    arguments = (*ARGUMENTS, "--num-return-sequences", str(returned), "-q")
    call(bundle, texts, "--resume", output, *arguments)  # nothing is there yet
    whole = output.read_bytes()
    assert whole.count(b"\n") == 7 * returned and whole.rstrip(b"\n").count(b"\n") == 7 * returned - 1
    for cut in (1, len(whole) // 3, len(whole) // 2, whole.rindex(b"\n\n") + 1, len(whole) - 1, len(whole)):
        output.write_bytes(whole[:cut])
        done = call(bundle, texts, "--resume", output, *arguments)
        assert output.read_bytes() == whole
        errors = whole[:cut].count(b"\n") // returned
        assert done.err.count("error: ") == (3 if errors <= 4 else 2 if errors == 5 else 0)


def test_json_lines_go_on_with_their_numbers(bundle: Path, texts: Path, tmp_path: Path, call: Command) -> None:
    output = tmp_path / "out.jsonl"
    files = (texts, texts)
    call(bundle, *files, "--json", "--output", output, *ARGUMENTS)
    whole = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    output.write_text("".join(f"{line}\n" for line in output.read_text("utf-8").splitlines()[:9]) + '{"file', "utf-8")
    done = call(bundle, *files, "--json", "--resume", output, *ARGUMENTS)
    assert f"note: {output} has the results of 9 lines, which are kept" in done.err
    found = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [(one["file"], one["line"], one.get("tokens")) for one in found] == [
        (one["file"], one["line"], one.get("tokens")) for one in whole
    ]


def test_outputs_of_other_runs_are_refused(bundle: Path, texts: Path, tmp_path: Path, call: Command) -> None:
    output = tmp_path / "out.jsonl"
    call(bundle, texts, "--json", "--output", output, *ARGUMENTS)
    before = output.read_bytes()
    resume = (bundle, texts, "--resume", output, *ARGUMENTS)
    call(*resume).failed("holds JSON lines, and --json is missing")
    call(bundle, texts, texts, "--json", "--resume", output, *ARGUMENTS).failed("does not belong to", "line 7")
    call(*resume, "--json", "--force").failed("leave --output and --force out")
    call(bundle, texts, "--resume", "-", *ARGUMENTS).failed("--resume - is standard output", "name the file")
    texts.write_bytes(b"a town\n")
    call(*resume, "--json").failed("the output has 7 results, and the files 1 input; pass the same files again")
    call(bundle, texts, "--json", "--resume", tmp_path, *ARGUMENTS).failed(
        "is a folder; pass --resume the name of a file"
    )
    assert output.read_bytes() == before
    output.write_bytes(b"a town\n")
    call(*resume, "--json").failed("holds no JSON lines, and --json is given")
