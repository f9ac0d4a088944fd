"""The command export-model: one line and a non-zero exit code for every mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.checkpoints.families import CheckpointCache
from support.commands import Command, Done, caller
from tightbeam.deploy import Bundle
from tightbeam.export.command import main as export_main
from tightbeam.export.progress import STEPS


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.fixture
def export(call: Command, checkpoints: CheckpointCache) -> Command:
    def run(*arguments: object) -> Done:
        return call(*arguments, entry=export_main)

    return run


def export_failed(done: Done, *parts: str) -> None:
    assert done.code == 1
    assert done.out == ""
    *steps, error = done.err.splitlines()
    assert {re.sub(r"  [0-9.]+ s$", "", step) for step in steps} <= set(STEPS), done.err
    assert error.startswith("error: ")
    for part in parts:
        assert part in error


def test_export_mistakes(export: Command, checkpoints: CheckpointCache, tmp_path: Path) -> None:
    checkpoint = checkpoints(tokenizer=True)
    output = tmp_path / "out"
    options = ("--output", output, "--no-check")
    export_failed(export("no-such-model", *options), "no-such-model")
    export_failed(export(tmp_path / "nothing", *options), "nothing")
    export_failed(
        export(checkpoint, *options, "--variant", "slimmer"), "variant 'slimmer' is unknown", "baseline, dedup, el"
    )
    export_failed(export(checkpoint, *options, "--precision", "fp8"), "precision 'fp8'", "fp32")
    export_failed(export(checkpoint, *options, "--max-new-tokens", 0), "max_new_tokens=0", "1 or more")
    export_failed(export(checkpoint, *options, "--max-new-tokens", 64), "max_new_tokens=64", "64 positions")
    export_failed(export(checkpoint, "--output", tmp_path / ("n" * 300)), "File name too long", "--output")
    assert list(tmp_path.iterdir()) == []
    output.mkdir()
    (output / "thesis.txt").write_text("mine")
    export_failed(export(checkpoint, *options), "exists", "--force")
    export_failed(export(checkpoint, *options, "--force"), "not a bundle", "--output")
    assert [path.name for path in output.iterdir()] == ["thesis.txt"]


def test_export_without_tokenizer_says_nothing_wrong(
    export: Command, checkpoints: CheckpointCache, tmp_path: Path, call: Command
) -> None:
    folder = checkpoints(tokenizer=False)
    done = export(folder, "--output", tmp_path / "out", "--variant", "dedup", "--max-new-tokens", 6)
    assert done.code == 0, done.err
    assert "error" not in done.err and "warning" not in done.err.lower()
    assert f"run-model {tmp_path / 'out'} --ids" in done.out and "has no tokenizer" in done.out
    manifest = Bundle.load(tmp_path / "out").manifest
    assert manifest.tokenizer is None and manifest.parity and manifest.parity.tokens > 0
    tokens = call(tmp_path / "out", "--ids", "--json", stdin=b"[5, 2]").succeeded().records[0]["tokens"]
    assert 2 <= len(tokens) <= 7
