"""Prompts of run-model as they are: documents, ``--prompt-file``, ``--prompt`` and ``--escapes``; results of several
lines; the sides of ``--truncate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.commands import SHORT, Command, caller
from tightbeam.deploy import Runner
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.model.texts import Texts
from tightbeam.deploy.run_model.input_files import MOST_TEXT_BYTES

PROMPT = "<|user|>\na small\r\ntown\n\n<|assistant|>\n"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def gpt2(bundles: BundleCache) -> Path:
    return bundles("dedup", "gpt2", tokenizer=True)


@pytest.fixture(scope="module")
def bart(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids of each input, in order."""
    seen: list[list[int]] = []
    sample = Model.sample

    def spy(self: Model, number: int, tokens: list[int], settings: object, *more: object) -> object:
        seen.append(list(tokens))
        return sample(self, number, tokens, settings, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "sample", spy)
    return seen


def test_a_prompt_reaches_the_tokenizer_as_it_is(
    gpt2: Path, bart: Path, call: Command, sources: list[list[int]], tmp_path: Path
) -> None:
    """A file, standard input, an argument, a line with escapes, and JSON give the same tokens, as from Python."""
    runner = Runner.load(gpt2, threads=1)
    expected, ended = runner.encode(PROMPT)[0], runner.encode(PROMPT[:-1])[0]
    assert expected != ended  # the last newline counts
    file, marked = tmp_path / "prompt.txt", tmp_path / "marked.txt"
    file.write_bytes(PROMPT.encode())
    marked.write_bytes(b"\xef\xbb\xbf" + PROMPT.encode())
    line = PROMPT.replace("\n", "\\n").replace("\r", "\\r")
    as_json = json.dumps({"text": PROMPT}).encode()
    for arguments, stdin in (
        ((file, "--document"), b""),
        ((marked, "--document"), b""),
        (("--document",), PROMPT.encode()),
        (("--prompt-file", file), b""),
        (("--prompt-file", "-"), PROMPT.encode()),
        (("--prompt", PROMPT), b""),
        (("--initial-prompt", PROMPT), b""),
        (("--prompt", PROMPT, "--document"), b"not read"),
        (("--prompt", line, "--escapes"), b""),
        (("--escapes",), f"{line}\n".encode()),
        (("--json-input", "text"), as_json),
    ):
        call(gpt2, *arguments, *SHORT, stdin=stdin).succeeded()
        assert sources.pop() == expected, arguments
    call(gpt2, "--document", file, marked, *SHORT).succeeded()
    assert sources == [expected, expected]

    sources.clear()
    encoder = Runner.load(bart, threads=1)
    call(bart, "--document", file, *SHORT).succeeded()
    call(bart, "--prompt-file", file, *SHORT).succeeded()
    call(bart, "--prompt", PROMPT, *SHORT).succeeded()
    joined = " ".join(PROMPT.splitlines())
    assert sources == [encoder.encode(text)[0] for text in (joined, PROMPT, PROMPT)]
    assert sources[0] != sources[1]


def test_results_of_several_lines(
    gpt2: Path, bart: Path, call: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = "\n a\\b\n\nc\r\n"
    monkeypatch.setattr(Texts, "decode", lambda *_: made)
    (tmp_path / "a.txt").write_text("a town")
    line = r"\n a\\b\n\nc\r\n" + "\n"
    note = [r"note: in a line of results a newline is written as \n, and a backslash as \\; --json has the texts"]
    for arguments, out in (
        (("--prompt", "a town"), made + "\n"),
        (("--document",), made + "\n"),
        (("--prompt", "a town", "--num-beams", 2, "--num-return-sequences", 2), line * 2),
        (("--document", "-", tmp_path / "a.txt"), line * 2),
        ((), line),
    ):
        done = call(gpt2, *arguments, *SHORT, stdin=b"a town")
        assert (done.code, done.out) == (0, out), arguments
        assert done.messages == ([] if out == made + "\n" else note)
    done = call(gpt2, "--json", *SHORT, stdin=b"a town").succeeded()
    assert done.records[0]["text"] == made
    assert call(bart, *SHORT, stdin=b"a town").succeeded().out == "  a\\b  c\n"
    assert call(bart, "--document", *SHORT, stdin=b"a town").succeeded().out == made + "\n"
    output = tmp_path / "results.txt"
    output.write_text(line)
    arguments = ("--document", tmp_path / "a.txt", "--resume", output, "-q")
    assert call(gpt2, *arguments, *SHORT).code == 0 and output.read_text() == line
    output.write_text("")
    assert call(gpt2, *arguments, *SHORT).code == 0 and output.read_text() == line


def test_sides_of_truncation(gpt2: Path, bart: Path, call: Command, sources: list[list[int]], tmp_path: Path) -> None:
    long = " ".join(SENTENCES * 4)
    (tmp_path / "long.txt").write_text(long)
    file = tmp_path / "long.txt"
    for bundle, usual in ((gpt2, "left"), (bart, "right")):
        runner = Runner.load(bundle, threads=1)
        for arguments, side in (
            (("--truncate", file), usual),
            ((file, "--truncate"), usual),
            (("--truncate", "left", file), "left"),
            (("--truncate=right", file), "right"),
            (("--truncate", "--", file), usual),
        ):
            done = call(bundle, "--json", *SHORT, *arguments)
            tokens, cut = runner.encode(long, truncate=side, max_new_tokens=5)  # type: ignore[arg-type]
            assert sources.pop() == tokens
            record = done.records[0]
            assert (record["truncated_tokens"], record["truncated_side"]) == (cut, side)
            where = "beginning" if side == "left" else "end"
            counts = f"from {len(tokens) + cut:,} to {len(tokens):,} tokens"
            assert f"cut at its {where} {counts}, which the model has positions for" in done.messages[0]
        stdin = json.dumps({"text": long, "truncate": "left"}).encode()
        assert (
            call(bundle, "--json", "--json-input", "text", *SHORT, stdin=stdin).records[0]["truncated_side"] == "left"
        )


def test_refused(gpt2: Path, call: Command, tmp_path: Path) -> None:
    for arguments, error in (
        (("--truncate=middle",), "--truncate=middle is not a side; pass --truncate left or right, or --truncate alone"),
        (("--prompt-file", tmp_path / "none"), "there is no file"),
        (("--prompt-file", tmp_path), "is a folder"),
        (("--prompt-file", ""), "no file is named"),
        (("--prompt-file", "a", "b"), "--prompt-file is the one input, a text"),
        (("--prompt-file", "a", "--prompt", "b"), "--prompt-file is the one input, a text"),
        (("--prompt", "a", tmp_path), "a file is named too"),
        (("--prompt", "a", "-", "--prompt-file", "b"), "--prompt-file is the one input"),
        (("--prompt", ""), "--prompt: empty text"),
        (("--prompt", "a\udcff"), "--prompt: not UTF-8 (byte 1 is 0xff)"),
        (("--prompt", r"a\q", "--escapes"), r"--prompt: \q is not an escape"),
        (("--escapes", "--ids"), "--escapes is for lines of text and --prompt"),
        (("--escapes", "--document"), "--escapes is for lines of text and --prompt"),
        (("--ray", "--prompt", "a"), "--escapes, --prompt and --prompt-file are not for --ray"),
        (("--text", "a"), "--prompt TEXT for one text"),
    ):
        done = call(gpt2, *arguments, stdin=b"a\n")
        done.failed(error, code=2 if arguments[0] == "--text" else 1)
    (tmp_path / "a.txt").write_text("a town")
    call(gpt2, "--prompt", "a", tmp_path / "a.txt").failed("--prompt is the input of a text model, and a file is named")


def test_a_text_that_no_model_reads_is_not_read_whole(gpt2: Path, call: Command, tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(MOST_TEXT_BYTES + 1)
    for source in (large, "/dev/zero"):
        for option in ("--prompt-file", "--document"):
            call(gpt2, option, source).failed(
                f"{source} has more than the", "bytes that one text may have; cut it into"
            )
    call(gpt2, "--prompt-file", "-", stdin=bytes(MOST_TEXT_BYTES + 1)).failed("standard input has more than the")
