"""`run-model` with files: several inputs, files of a wrong kind, the output file, notes and the summary."""

from __future__ import annotations

import gzip
import json
import os
import pty
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES, WHISPER_GENERATION
from support.commands import MODULE, SHORT, SUMMARY, Command, caller, process
from support.inputs import read_features
from tightbeam.deploy import InputError, Runner
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.run_model.input_files import AUDIO_NAMES, IDS, TEXT, InputFiles, InputKind
from tightbeam.deploy.run_model.summary import RunSummary, peak_memory_bytes


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture(scope="module")
def whisper(bundles: BundleCache) -> Path:
    return bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)


@pytest.fixture(scope="module")
def runner(bundle: Path) -> Runner:
    return Runner.load(bundle, threads=1)


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    """Two files, of two and of three lines; the second line of the second is bad."""
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(f"\ufeff{SENTENCES[0]}\n{SENTENCES[1]}", "utf-8")
    two.write_text(f"\ufeff{SENTENCES[2]}\n\n{SENTENCES[3]}\n", "utf-8")
    return one, two


# Several files


def test_results_of_several_files_are_in_order(
    bundle: Path, runner: Runner, call: Command, texts: tuple[Path, Path]
) -> None:
    expected = runner.generate_text(SENTENCES, max_new_tokens=5)
    done = call(bundle, *texts, *SHORT).failed(f"{texts[1]}, line 2: empty text")
    assert done.out.split("\n") == [*expected[:3], "", expected[3], ""]
    assert done.messages[-1] == "error: 1 of the lines could not be run; each is named above"
    done = call(bundle, texts[0], "-", "--json", *SHORT, stdin=b"a small town\n").succeeded()
    assert [(record["file"], record["line"]) for record in done.records] == [
        (str(texts[0]), 1),
        (str(texts[0]), 2),
        ("standard input", 1),
    ]
    one = call(bundle, texts[0], "--json", *SHORT).succeeded()
    assert "file" not in one.records[0]


def test_each_document_is_one_input(bundle: Path, runner: Runner, call: Command, texts: tuple[Path, Path]) -> None:
    for path in texts:
        path.write_text("\ufeffa small town\r\nby the river\n\nhas opened", "utf-8")
    texts[1].write_text("the council\nwill vote", "utf-8")
    joined = [" ".join(path.read_text("utf-8-sig").splitlines()) for path in texts]
    done = call(bundle, *texts, "--document", "--json", *SHORT).succeeded()
    assert [record["text"] for record in done.records] == runner.generate_text(joined, max_new_tokens=5)
    assert [record["file"] for record in done.records] == [str(path) for path in texts]
    match = SUMMARY.fullmatch(done.err.strip())
    assert match and match["inputs"] == "2" and match["unit"] == "document"
    (texts[1].parent / "empty.txt").write_text("")
    call(bundle, texts[1].parent / "empty.txt", "--document").failed("empty.txt: empty text")


def test_several_audio_files(whisper: Path, call: Command, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    runner = Runner.load(whisper, threads=1)
    names = [str(tmp_path / name) for name in ("a.wav", "b.flac")]
    for index, name in enumerate(names):
        soundfile.write(name, chirp(1.5, high_hz=900 * (1 + index)), RATE_HZ)
    (tmp_path / "names.txt").write_text(f"{names[0]}\n{tmp_path}/none.wav\n")
    expected = [" ".join(text.splitlines()) for text in runner.transcribe(names, max_new_tokens=5)]
    found = runner.transcribe_outputs(names, max_new_tokens=5)
    done = call(whisper, *names, *SHORT)
    assert (done.code, done.out.splitlines()) == (0, [f"{n}\t{t}" for n, t in zip(names, expected, strict=True)])
    assert [name for name, line in zip(names, done.messages, strict=True) if line.startswith(f"note: {name}: found")]
    assert [record["language"] for record in call(whisper, *names, "--json", *SHORT).succeeded().records] == [
        output.language for output in found
    ]
    done = call(whisper, names[1], tmp_path / "names.txt", "--json", *SHORT)
    done.failed(f"{tmp_path}/names.txt, line 2: there is no file {tmp_path}/none.wav")
    assert [record.get("text") for record in done.records] == [*runner.transcribe(names[::-1], max_new_tokens=5), None]
    assert [record["file"] for record in done.records] == [names[1], *[str(tmp_path / "names.txt")] * 2]
    match = SUMMARY.fullmatch(done.err.splitlines()[-2])
    assert match and (match["inputs"], match["unit"]) == ("2", "file")
    windows = [runner.generate_from_features(features, max_new_tokens=5) for features in features_of(runner, names)]
    ends = runner.options().eos_token_ids  # after the start token, the language, and "no timestamps"
    counts = [row[3:].tolist() for found in windows for row in found.sequences]
    assert int(match["tokens"]) == sum(next((i + 1 for i, t in enumerate(r) if t in ends), len(r)) for r in counts)
    missing = call(whisper, tmp_path / "none.wav").failed(
        f"error: there is no file {tmp_path}/none.wav; expected a sound or video file"
    )
    assert len(missing.messages) == 2


def test_a_folder_has_no_single_file_of_subtitles(whisper: Path, call: Command, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "talks").mkdir()
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / "talks" / name, chirp(1.5), RATE_HZ)
    one = tmp_path / "one.srt"
    said = call(whisper, tmp_path / "talks", "--format", "srt", "-o", one, *SHORT)
    said.failed(f"--output {one} names one file", "pass --output FOLDER/")
    assert not one.exists()


def features_of(runner: Runner, names: list[str]) -> list[Any]:

    return [read_features(runner, name) for name in names]


def test_arrays_are_samples(whisper: Path, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    runner, wave = Runner.load(whisper, threads=1), chirp(1.5)
    soundfile.write(tmp_path / "a.wav", wave, RATE_HZ, subtype="FLOAT")
    expected = runner.transcribe([tmp_path / "a.wav"], max_new_tokens=5)
    assert (
        runner.transcribe([wave], max_new_tokens=5)
        == runner.transcribe([wave.astype(np.float64)], max_new_tokens=5)
        == expected
    )
    for bad in (np.zeros((2, 9), np.float32), np.zeros(9, np.int16), 3):
        with pytest.raises(InputError, match="expected the name of an audio file, or an array of samples, one channel"):
            runner.transcribe([bad])
    for samples, expected_error in ((np.zeros(0, np.float32), "is empty"), (np.full(9, np.nan), "holds NaN")):
        with pytest.raises(InputError, match=f"the recording {expected_error}"):
            runner.transcribe([samples])


def test_an_unreadable_file_stops_all_before_the_run(bundle: Path, call: Command, texts: tuple[Path, Path]) -> None:
    done = call(bundle, *texts, texts[0].parent / "none.txt", *SHORT).failed("there is no file", "none.txt")
    assert (done.out, len(done.messages)) == ("", 1)


# Files of a wrong kind


def refusal(path: Path, kind: InputKind) -> str:
    with pytest.raises(InputError) as caught:
        InputFiles([str(path)]).check(kind)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_of_another_kind_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    text = "".join(f"{sentence}\n" for sentence in SENTENCES * 3)
    path.write_text(text)
    InputFiles([str(path)]).check(TEXT)
    assert refusal(path, IDS) == (
        f"none of the first 10 lines of {path} is a JSON list of token ids such as [0, 31414, 2]; "
        "leave --ids out for text"
    )
    assert refusal(path, AUDIO_NAMES).startswith(
        f"none of the first 10 lines of {path} is the name of a file; pass aud"
    )
    path.write_bytes("caf\u00e9\n".encode("latin-1") * 12)
    assert refusal(path, TEXT).endswith("is text in UTF-8; convert or decompress it")
    path.write_bytes("caf\u00e9\n".encode("latin-1") * 9)
    InputFiles([str(path)]).check(TEXT)  # nine lines have an error each
    path.write_bytes("caf\u00e9\n".encode("latin-1") * 9 + b"coffee\n" + b"\xff\n" * 99)
    InputFiles([str(path)]).check(TEXT)  # bad lines among good ones


def test_binary_data_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    text = "".join(f"{sentence} {index}\n" for index in range(50) for sentence in SENTENCES)
    noise = np.random.default_rng(0).integers(0, 256, 40, np.uint8).tobytes()
    for data in (gzip.compress(text.encode()), text.encode("utf-16"), b"PK\x03\x04\x14\x00\x08\x00" + noise):
        path.write_bytes(data)
        assert refusal(path, TEXT).startswith(f"{path} holds binary data, expected text in UTF-8 in each line; convert")
    path.write_bytes(b"a\0small town\n\xff\n")  # a zero byte in a line that is text
    InputFiles([str(path)]).check(TEXT)


def test_wrong_kinds_run_nothing(bundle: Path, whisper: Path, call: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES * 5))
    for arguments, part in (((bundle, path, "--ids"), "leave --ids out"), ((whisper, path), "pass audio files")):
        done = call(*arguments, *SHORT).failed(part)
        assert (done.out, len(done.messages)) == ("", 1)


def test_standard_input_of_a_wrong_kind_ends_after_ten_lines(bundle: Path, call: Command) -> None:
    done = call(bundle, "--ids", "--batch-size", 2, *SHORT, stdin=b"a small town\n" * 3000)
    done.failed("none of the first 10 lines of standard input is a JSON list")
    assert len(done.messages) <= 10


def test_binary_standard_input_is_one_error(bundle: Path, call: Command) -> None:
    text = "".join(f"{sentence} {index}\n" for index in range(50) for sentence in SENTENCES)
    done = call(bundle, *SHORT, stdin=gzip.compress(text.encode(), mtime=0))
    done.failed("standard input holds binary data, expected text in UTF-8")
    assert (done.out, len(done.messages)) == ("", 1)


def test_a_bundle_without_tokenizer_is_one_error(bundle: Path, call: Command, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder, ignore=shutil.ignore_patterns("tokenizer"))
    data = json.loads((folder / "bundle.json").read_text("utf-8"))
    (folder / "bundle.json").write_text(json.dumps({**data, "tokenizer": None}), "utf-8")
    done = call(folder, stdin=b"a small town\n" * 5).failed("has no tokenizer", "--ids")
    assert (done.out, len(done.messages)) == ("", 1)


# The output file


def test_results_go_to_a_file(bundle: Path, call: Command, texts: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    expected = call(bundle, texts[0], *SHORT).succeeded().out
    assert call(bundle, texts[0], "-o", path, *SHORT).succeeded().out == ""
    assert path.read_text("utf-8") == expected != ""
    done = call(bundle, texts[1], "-o", path, *SHORT).failed("out.txt exists and is not empty", "--force")
    assert path.read_text("utf-8") == expected and len(done.messages) == 1
    call(bundle, "-", "--output", path, "--force", *SHORT, stdin=b"").succeeded()
    assert path.read_text("utf-8") == ""
    call(bundle, texts[0], "-o", path, *SHORT).succeeded()  # an empty file
    call(bundle, texts[0], "-o", texts[0], "--force", *SHORT).failed("one.txt is one of the inputs too")
    call(bundle, texts[0], "-o", tmp_path, *SHORT).failed("is a folder; pass --output the name of a file")
    call(bundle, texts[0], "-o", tmp_path / "no" / "out", *SHORT).failed("cannot write", "no such file or directory")


def test_an_error_before_the_run_leaves_the_output_file(bundle: Path, call: Command, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("precious")
    call(bundle, "-o", path, "--force", "--num-beams", 0, stdin=b"a town").failed("num_beams=0")
    call(bundle, tmp_path / "none.txt", "-o", path, "--force").failed("there is no file")
    assert path.read_text() == "precious"


def test_standard_input_is_not_replaced_by_the_results(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("a small town\n")
    with path.open("rb") as stream:
        command = [*MODULE, str(bundle), "-o", str(path), "--force"]
        done = subprocess.run(command, stdin=stream, capture_output=True, timeout=60)
    assert done.returncode == 1 and b"is one of the inputs too; pass another --output" in done.stderr
    assert path.read_text() == "a small town\n"


def test_an_impossible_name_of_the_output_file(bundle: Path, call: Command) -> None:
    call(bundle, "-o", "x" * 300, stdin=b"a town").failed("cannot write xxx", "file name too long", "another --output")


def test_an_interrupted_run_leaves_whole_lines(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    command = [*MODULE, str(bundle), "-", "-o", str(path), "--batch-size", "1", *SHORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin and running.stderr
        running.stdin.write(b"a small town\n")
        running.stdin.flush()
        while not (path.exists() and path.read_bytes()):
            assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        assert running.stderr.read().startswith(b"error: interrupted; the results written so far are whole")
    assert running.returncode == 130
    assert path.read_bytes().count(b"\n") == 1 and path.read_bytes().endswith(b"\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_under_the_output_file(bundle: Path) -> None:
    process(bundle, "-o", "/dev/full", *SHORT, stdin=b"a small town\n").failed("No space left on device")


def test_the_output_file_does_not_need_standard_output(bundle: Path, tmp_path: Path) -> None:
    script = 'exec "$@" >&-'
    path = tmp_path / "out.txt"
    arguments = [*MODULE, bundle, "-", "-o", path, *SHORT]
    process(*arguments, stdin=b"a town\n", command=["sh", "-c", script, "sh"]).succeeded()
    assert path.read_text("utf-8").count("\n") == 1


# Notes and summary


def test_summary_counts_lines_and_tokens(bundle: Path, runner: Runner, call: Command, texts: tuple[Path, Path]) -> None:
    beams = ("--num-beams", 2, "--num-return-sequences", 2)
    done = call(bundle, *texts, "--json", *beams, *SHORT).failed("line 2")
    match = SUMMARY.fullmatch(done.err.splitlines()[-2])
    assert match
    tokens = sum(len(row) - 1 for record in done.records for row in record.get("sequences", []))
    assert (match["inputs"], match["unit"], match["tokens"]) == ("4", "line", str(tokens))


def test_summary_line(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = RunSummary("line", 0.3, started=8)
    for tokens in (100, 87):
        summary.add(InputResult(1, new_tokens=tokens))
    monkeypatch.setattr("tightbeam.deploy.run_model.summary.time.perf_counter", lambda: 8.5)
    monkeypatch.setattr("tightbeam.deploy.run_model.summary.peak_memory_bytes", lambda: 104_400_000)
    assert summary.text() == (
        "2 lines, 187 tokens in 0.50 s: 4.0 lines/s, 374 tokens/s; 104 MB at most; model loaded in 0.30 s"
    )
    summary = RunSummary("file", 12.3, started=6)
    summary.add(InputResult(1, new_tokens=1))
    summary.add(InputResult(2, error="bad"))
    assert summary.failed == 1
    monkeypatch.setattr("tightbeam.deploy.run_model.summary.peak_memory_bytes", lambda: 0)
    assert summary.text() == "1 file, 1 token in 2.5 s: 0.40 files/s, 0.40 tokens/s; model loaded in 12 s"


def test_peak_memory_is_that_of_this_process() -> None:
    before = peak_memory_bytes()
    block = np.ones(2**25, np.float64)  # 268 MB
    assert peak_memory_bytes() >= max(before, block.nbytes)


def test_quiet_prints_errors_only(bundle: Path, call: Command, tmp_path: Path) -> None:
    config = tmp_path / "g1.json"
    config.write_text('{"output_scores": true, "top_p": 0.9, "max_new_tokens": 5}')
    options = (bundle, "--truncate", "--generation-config", config)
    long = "the harbour bridge " * 40
    done = call(*options, stdin=f"{long}\n".encode())
    assert done.code == 0
    assert done.messages[:2] == [
        f"note: output_scores=True (from {config}) has no effect here",
        f"note: top_p=0.9 (from {config}) has no effect here, since nothing is sampled",
    ]
    assert len(done.messages) == 3 and "cut at its end from" in done.messages[2]
    quiet = call(*options, "--quiet", stdin=f"{long}\n".encode())
    assert (quiet.code, quiet.err, quiet.out) == (0, "", done.out)
    assert call(*options, "-q", stdin=b"\n").err.splitlines() == [
        "error: standard input, line 1: empty text; expected at least one word",
        "error: 1 of the lines could not be run; each is named above",
    ]


def test_errors_of_a_config_name_the_file(bundle: Path, call: Command, tmp_path: Path) -> None:
    config = tmp_path / "g1.json"
    config.write_text('{"num_beams": 0}')
    call(bundle, "--generation-config", config, stdin=b"a\n").failed(f"num_beams=0 (from {config})")
    call(bundle, "--generation-config", config, "--num-beams", -1, stdin=b"a\n").failed(
        "num_beams=-1 (from the command line)"
    )


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ((), "reading from standard input, a text in each line"),
        (("--ids",), "reading from standard input, a JSON list of token ids in each line"),
        (("--document",), "reading one text from standard input"),
    ],
    ids=str,
)
def test_a_terminal_is_told_what_is_read(bundle: Path, options: tuple[str, ...], note: str) -> None:
    leader, follower = pty.openpty()
    command = [*MODULE, str(bundle), *options, *SHORT]
    with subprocess.Popen(command, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        os.close(follower)
        assert running.stdout and running.stderr
        first = running.stderr.readline().decode()
        os.write(leader, b"[5, 6, 2]\n\x04")
        out = running.stdout.read()
        running.stderr.read()
    os.close(leader)
    assert first == f"note: {note}; end with Ctrl-D\n"
    assert running.returncode == 0
    assert out.count(b"\n") == 1


# JSON lines in


def test_json_lines_in_and_out(tmp_path: Path, call: Command, runner: Runner) -> None:
    path = tmp_path / "lines.jsonl"
    records = [{"doc": "a small town", "num_beams": 2}, {"doc": "the tram line", "num_beams": 3, "beams": 3}]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    done = call(runner.bundle.path, path, "--json-input", "doc", "--json", "--max-rows", 6, *SHORT)
    done.failed("line 2: beams=3", "is not a generation setting")
    assert done.records[0]["text"] == call(runner.bundle.path, "--num-beams", 2, *SHORT, stdin=b"a small town").out[:-1]
    assert "beams=3" in done.records[1]["error"]


def test_options_that_exclude_json_input(tmp_path: Path, call: Command, bundle: Path, texts: tuple[Path, Path]) -> None:
    call(bundle, texts[0], "--json-input", "text", "--resume", tmp_path / "out").failed("needs --json")
    call(bundle, texts[0], "--max-rows", 4, "--batch-size", 2).failed("bound the same")
    call(bundle, texts[0], "--max-rows", 2, "--num-beams", 3).failed("less than the 3 beams")
    long = tmp_path / "long.txt"
    long.write_text("a town\n" * 10)
    call(bundle, long, "--json-input", "text").failed(
        "none of the first 10 lines", "a JSON object with the field 'text'"
    )


def test_json_lines_that_are_read_as_texts_are_noted(tmp_path: Path, call: Command, bundle: Path) -> None:
    note = "note: lines are JSON objects, and each is read as a text; --json-input FIELD reads a field of it"
    for content, options, messages in (
        ('{"text": "a town"}\n', (), [note]),
        ('{"text": "a town"}\n', ("--json-input", "text"), []),
        ('{"text": "a town"}\n', ("--document",), []),
        ('\ufeff{"text": "a", "text": "b"}\na town\n', (), [note]),
        ("{a town}\n", (), []),
        ("", (), []),
    ):
        (tmp_path / "a.jsonl").write_text(content)
        done = call(bundle, tmp_path / "a.jsonl", *options, *SHORT)
        assert (done.code, done.messages) == (0, messages)
