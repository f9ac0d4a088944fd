"""The command build-trie, and run-model with what it wrote: results are lines of the file, errors one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.commands import Command, Done, caller
from tightbeam.deploy.commands import build_trie
from tightbeam.deploy.tries.file import read_trie

OUTPUTS = ("the harbour bridge", "the harbour", "a small town", "two men on the hill")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


def built(done: Done) -> str:
    """The line that a build printed, and nothing else."""
    assert (done.code, done.err) == (0, ""), done.err
    return done.out


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("dedup", tokenizer=True)


def test_results_are_lines_of_the_file(bundle: Path, command: Command, tmp_path: Path) -> None:
    entries, trie = tmp_path / "titles.txt", tmp_path / "titles.trie"
    entries.write_text("\ufeff" + "\r\n".join(OUTPUTS))
    said = built(command(bundle, entries, "-o", trie, entry=build_trie.main))
    assert said.startswith(f"wrote {trie}: 4 different outputs of ") and f"{trie.stat().st_size:,} bytes" in said
    run = (bundle, "--json", "--num-beams", 4, "--num-return-sequences", 4, "--trie", trie, "--length-penalty", 0)
    found = command(*run, "--max-new-tokens", 30, stdin="\n".join(SENTENCES).encode()).succeeded()
    for record in found.records:
        assert sorted(record["texts"]) == sorted(OUTPUTS)


def test_token_ids_and_open_ends(bundle: Path, command: Command, tmp_path: Path) -> None:
    entries, trie = tmp_path / "ids.jsonl", tmp_path / "a.trie"
    entries.write_text("[5, 6]\n[5, 6, 2]\n[7]\n")
    for options, counted in (((), 2), (("--open-ended",), 3), (("--eos-token-id", 6), 3)):
        built(command(bundle, entries, "--ids", *options, "-o", trie, entry=build_trie.main))
        assert read_trie(trie).entries == counted
    done = command(bundle, "--trie", trie, stdin=b"a town\n").succeeded()
    assert done.out


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"a town\n\n", (), "line 2 of {file}: an empty line; expected an output"),
        (b"[5]\n[5, x]\n", ("--ids",), "line 2 of {file}: not a JSON list of token ids"),
        (b"[5]\n[]\n", ("--ids",), "line 2 of {file}: an empty list of token ids"),
        (b"[5, 100000]\n", ("--ids",), "{file} holds token 100000, outside the vocabulary; pass ids from 0 to"),
        (b"[-5]\n", ("--ids",), "hold -5, which is not a token id"),
        (b"", (), "a trie needs at least one entry"),
        (b"\xff\xfe\n", (), "{file} is not UTF-8"),
        (b"a town\n", ("--open-ended", "--eos-token-id", 3), "--open-ended adds no end token"),
        (b"a town\n", ("--eos-token-id", 100000), "eos_token_id=100000 (from the call) holds 100000, which is outside"),
    ],
)
def test_errors_are_one_line(
    bundle: Path, command: Command, tmp_path: Path, content: bytes, options: tuple[object, ...], message: str
) -> None:
    file = tmp_path / "entries"
    file.write_bytes(content)
    arguments = (bundle, file, "-o", tmp_path / "a.trie", *options)
    command(*arguments, entry=build_trie.main).failed(message.replace("{file}", str(file)))
    assert not (tmp_path / "a.trie").exists()


def test_files_that_cannot_be_used(bundle: Path, command: Command, tmp_path: Path) -> None:
    missing, file = tmp_path / "none", tmp_path / "entries"
    file.write_text("a town")
    command(bundle, missing, "-o", tmp_path / "a", entry=build_trie.main).failed(f"cannot read {missing}: no such")
    command(bundle, file, "-o", missing / "a", entry=build_trie.main).failed(f"cannot write {missing / 'a'}: no such")
    command(bundle, "--trie", missing, stdin=b"a town\n").failed("cannot read the trie")
    missing.write_text(json.dumps([5]))
    command(bundle, "--trie", missing, stdin=b"a town\n").failed(f"{missing} is not a whole trie: it has no header")
