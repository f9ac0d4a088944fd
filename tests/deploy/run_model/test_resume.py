"""Runs that go on where another was cut."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.commands import SHORT, Command, caller
from tightbeam.deploy import BundleError
from tightbeam.deploy.bundle.reader import Bundle

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
    (tmp_path / ".out.jsonl.run.json").unlink()  # as of an earlier version
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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--num-beams", "2"), "holds results of other settings (num-beams is 3 there, 2 here)"),
        (("--truncate",), "(truncate is false there, true here)"),
        (("--generation-config", "long.json"), "(bad-words-ids is [] there, "),
        (("--stop-string", "a"), '(stop-strings is null there, ["a"] here)'),
    ],
)
def test_a_run_of_other_settings_is_not_continued(
    bundle: Path,
    texts: Path,
    tmp_path: Path,
    call: Command,
    monkeypatch: pytest.MonkeyPatch,
    changed: tuple[str, ...],
    message: str,
) -> None:
    """Without --json nothing in the results themselves says how they were made."""
    output = tmp_path / "out.txt"
    monkeypatch.chdir(tmp_path)
    Path("long.json").write_text(json.dumps({"bad_words_ids": [[5] * 100]}))
    call(bundle, texts, "--output", output, *ARGUMENTS)
    begun = b"".join(output.read_bytes().splitlines(keepends=True)[:3])
    output.write_bytes(begun)
    refused = call(bundle, texts, "--resume", output, *ARGUMENTS, *changed)
    refused.failed(message, "pass the same ones, or another --output")
    assert len(refused.err) < 1000 and output.read_bytes() == begun
    done = call(bundle, texts, "--resume", output, *ARGUMENTS, "--batch-size", "2")
    assert "not compared" not in done.err and output.read_bytes().count(b"\n") == 7


def test_a_run_of_another_bundle_is_not_continued(
    bundle: Path, bundles: BundleCache, texts: Path, tmp_path: Path, call: Command
) -> None:
    output = tmp_path / "out.txt"
    call(bundle, texts, "--output", output, *ARGUMENTS)
    call(bundles("dedup", tokenizer=True), texts, "--resume", output, *ARGUMENTS).failed("results of another bundle")


def test_results_without_a_record_are_continued_with_a_note(
    bundle: Path, texts: Path, tmp_path: Path, call: Command
) -> None:
    output, record = tmp_path / "out.txt", tmp_path / ".out.txt.run.json"
    call(bundle, texts, "--output", output, *ARGUMENTS)
    record.write_bytes(b"[1")
    call(bundle, texts, "--resume", output, *ARGUMENTS).failed("out.txt.run.json is damaged", "remove it")
    record.unlink()
    done = call(bundle, texts, "--resume", output, *ARGUMENTS)
    assert f"note: {record} cannot be read, so the settings of {output} are not compared" in done.err


def test_old_results_stay_until_there_are_new_ones(
    bundle: Path, texts: Path, tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, record = tmp_path / "out.txt", tmp_path / ".out.txt.run.json"
    call(bundle, texts, "--output", output, *ARGUMENTS)
    before = output.read_bytes(), record.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Bundle, "wait_for_weights", fails)
        call(bundle, texts, "--output", output, "--force", *SHORT).failed("the weights were changed")
    assert (output.read_bytes(), record.read_bytes()) == before
    texts.write_bytes(b"")
    call(bundle, texts, "--output", output, "--force", *SHORT)
    assert output.read_bytes() == b"" and record.read_bytes() != before[1]


def fails(bundle: Bundle) -> None:
    raise BundleError("the weights were changed")


def test_a_run_into_a_pipe_has_no_record(bundle: Path, texts: Path, tmp_path: Path, call: Command) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(pipe.read_bytes)
        call(bundle, texts, "--output", pipe, *ARGUMENTS)
        assert found.result(timeout=60).count(b"\n") == 7
    assert not list(tmp_path.glob(".*"))
