"""`run-model --stream`: pieces of text as they are certain, which join to what is written without it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.commands import Command, caller
from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.newlines import Newlines, escaped, kept, spaced
from tightbeam.deploy.inputs.text_pieces import TextPieces
from tightbeam.deploy.run_model.streamed_line import StreamedLine

TEXTS = "\n".join([SENTENCES[0], "", *SENTENCES[1:3]]).encode()
LONG = ("--max-new-tokens", "12", "--min-new-tokens", "12")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module", params=["bart", "llama"])
def bundle(bundles: BundleCache, request: pytest.FixtureRequest) -> Path:
    return bundles("dedup", request.param, tokenizer=True)


class Flushed(io.StringIO):
    """Standard output, and what was there at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def flush(self) -> None:
        if rest := self.getvalue()[sum(map(len, self.parts)) :]:
            self.parts.append(rest)


@pytest.mark.parametrize(
    "options",
    [(), ("--do-sample", "--seed", "1"), ("--num-beams", "3"), ("--num-beams", "3", "--num-return-sequences", "2")],
)
@pytest.mark.parametrize("together", ["1", "8"])
def test_pieces_join_to_the_results(
    bundle: Path, call: Command, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], together: str
) -> None:
    common = (bundle, "-", *LONG, *options, "--batch-size", together)
    whole = call(*common, stdin=TEXTS)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout := Flushed())
        streamed = call(*common, "--stream", stdin=TEXTS)
    assert (streamed.code, streamed.messages) == (whole.code, whole.messages) and whole.code == 1
    assert stdout.getvalue() == whole.out
    if "--num-beams" not in options:
        assert len(stdout.parts) > (20 if together == "1" else 8)  # lines that ran beside the first come whole
        assert "\n" not in "".join(stdout.parts[:8])  # of the first line, before it is done


def test_objects_of_pieces(bundle: Path, call: Command, tmp_path: Path) -> None:
    whole = call(bundle, "-", *LONG, "--json", stdin=TEXTS)
    found: dict[int, list[str]] = {}
    results = []
    for record in call(bundle, "-", *LONG, "--json", "--stream", stdin=TEXTS).records:
        if "piece" in record:
            assert record.keys() == {"line", "piece"}
            assert not results or record["line"] > results[-1]["line"]
            found.setdefault(record["line"], []).append(record["piece"])
        else:
            results.append(record)
    assert results == whole.records
    assert {line: "".join(pieces) for line, pieces in found.items()} == {
        record["line"]: record["text"] for record in results if "text" in record
    }
    assert len(found[1]) > 4
    (tmp_path / "a.txt").write_text(SENTENCES[0])
    files = (tmp_path / "a.txt", tmp_path / "a.txt")
    records = call(bundle, *files, *LONG, "--json", "--stream").succeeded().records
    assert {record["file"] for record in records} == {str(files[0])}


def test_lines_with_settings_of_their_own(bundle: Path, call: Command) -> None:
    lines = [{"text": SENTENCES[0]}, {"text": SENTENCES[1], "num_beams": 3, "num_return_sequences": 2}, {"text": 5}]
    given = "\n".join(map(json.dumps, lines)).encode()
    common = (bundle, "-", *LONG, "--json-input", "text", "--max-rows", "4")
    assert call(*common, "--stream", stdin=given).out == call(*common, stdin=given).out


def test_documents_and_files(bundle: Path, call: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES[0].replace(" ", "\n", 2))
    common = (bundle, tmp_path / "a.txt", "--document", *LONG)
    whole = call(*common).succeeded().out
    call(*common, "--stream", "--output", tmp_path / "out").succeeded()
    assert (tmp_path / "out").read_text() == whole


@pytest.mark.parametrize("newlines", [kept, escaped, spaced])
def test_a_line_in_pieces_is_the_whole_line(newlines: Newlines) -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        parts = generator.choice(["a", "\n", "\r", "\\", " b", "\u2028", "\n\n"], 12).tolist()
        line = StreamedLine(newlines, "file\t")
        written = "".join(map(line.add, parts))
        whole = f"file\t{newlines(''.join(parts))}"
        assert written + line.rest(whole) == whole


def test_an_interrupted_stream_does_not_claim_whole_results(
    bundle: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(TextPieces, "rest", interrupted)
    done = call(bundle, "-", *LONG, "--stream", stdin=SENTENCES[0].encode())
    assert (done.code, done.messages) == (130, ["error: interrupted"])


def test_what_has_no_stream(bundles: BundleCache, bundle: Path, call: Command, tmp_path: Path) -> None:
    written = tmp_path / "written"
    written.write_text("")
    call(bundle, "-", "--stream", "--resume", written, stdin=b"a").failed(
        "--resume needs whole results", "leave one out"
    )
    call(bundles("dedup", "whisper", tokenizer=True), "a.wav", "--stream", "-o", f"{tmp_path}/").failed(
        "is a folder, and --stream writes pieces to one file"
    )
    call(bundle, "-", "--stream", "--ray", stdin=b"a").failed("--stream is not for --ray", "leave one out")
    plain = bundles("dedup")
    call(plain, "-", "--stream", "--ids", stdin=b"[5]").failed("--stream gives text", "has no tokenizer; leave it out")
    moonshine = bundles("dedup", "moonshine", tokenizer=True)
    call(moonshine, "a.wav", "--stream").failed("--stream is for text models and Whisper", "leave it out")


def test_ids_are_streamed_as_text(bundle: Path, call: Command) -> None:
    ids = json.dumps(Runner.load(bundle, threads=1).encode(SENTENCES[0])[0]).encode()
    text = call(bundle, "-", *LONG, "--stream", stdin=SENTENCES[0].encode()).succeeded().out
    assert call(bundle, "-", *LONG, "--stream", "--ids", stdin=ids).succeeded().out == text
