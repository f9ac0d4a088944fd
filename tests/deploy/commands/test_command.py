"""The command run-model: its output streams, and one line and a non-zero exit code for every mistake."""

from __future__ import annotations

import inspect
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.commands import MODULE, SHORT, Command, caller, process
from tightbeam.deploy import Runner
from tightbeam.deploy.commands.run_model import run_model
from tightbeam.deploy.generation.fields import SPEECH_ONLY
from tightbeam.deploy.generation.layers import caller_layers, merged
from tightbeam.deploy.model.model import Model

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture(scope="module")
def without_tokenizer(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle without a tokenizer."""
    folder = tmp_path_factory.mktemp("ids") / "bundle"
    shutil.copytree(bundle, folder, ignore=shutil.ignore_patterns("tokenizer"))
    data = json.loads((folder / "bundle.json").read_text("utf-8"))
    (folder / "bundle.json").write_text(json.dumps({**data, "tokenizer": None}), "utf-8")
    return folder


@pytest.fixture(scope="module")
def runner(bundle: Path) -> Runner:
    return Runner.load(bundle, threads=1)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in SENTENCES), "utf-8")
    return path


# Output


def test_script_and_command_are_one_program(bundle: Path, texts: Path, runner: Runner) -> None:
    script = process(bundle, texts, *SHORT, command=[sys.executable, str(ROOT / "deploy" / "runner.py")]).succeeded()
    command = process(bundle, "-", *SHORT, stdin=texts.read_bytes()).succeeded()
    assert script.out == command.out
    assert script.out.splitlines() == runner.generate_text(list(SENTENCES), max_new_tokens=5)


def test_json_gives_one_object_a_line(bundle: Path, texts: Path, call: Command, runner: Runner) -> None:
    records = call(bundle, texts, "--json", "--num-beams", 3, "--num-return-sequences", 2, *SHORT).succeeded().records
    assert [record["line"] for record in records] == [1, 2, 3, 4]
    for text, record in zip(SENTENCES, records, strict=True):
        ids = np.array([runner.encode(text)[0]])
        expected = runner.generate(ids, num_beams=3, num_return_sequences=2, max_new_tokens=5)
        longest = expected.sequences.shape[1]
        assert [row[:longest] for row in record["sequences"]] == expected.sequences.tolist()
        assert record["tokens"] == record["sequences"][0]
        assert record["texts"] == [runner.decode(row) for row in expected.sequences]
        assert record["text"] == record["texts"][0]
        np.testing.assert_allclose(record["scores"], expected.scores, rtol=1e-5)


OPTIONS: dict[str, tuple[Any, ...]] = {
    "num_beams": (3,),
    "num_return_sequences": (2,),
    "max_new_tokens": (3,),
    "min_new_tokens": (4,),
    "max_length": (6,),
    "min_length": (6,),
    "length_penalty": (-1.0,),
    "early_stopping": (True, False, "never"),
    "no_repeat_ngram_size": (1,),
    "repetition_penalty": (3.0,),
    "forced_bos_token_id": (7,),
    "forced_eos_token_id": (2,),
}
NOT_SETTINGS = {
    "bundle",
    "chat",
    "system",
    "json_input",
    "max_rows",
    "sources",
    "output",
    "resume",
    "force",
    "quiet",
    "version",
    "json_lines",
    "ids",
    "sample_channels",
    "sample_format",
    "sample_rate",
    "document",
    "escapes",
    "prompt_file",
    "truncate",
    "batch_size",
    "engine",
    "device",
    "threads",
    "ray",
    "text_field",
    "key_field",
    "partition_rows",
    "result_format",
    "sound_input",
    "stream",
    "context",
    "max_words_per_line",
}
SAMPLING: dict[str, Any] = {"temperature": 3.0, "top_k": 3, "top_p": 0.5, "min_p": 0.5, "typical_p": 0.5, "seed": 9}


def test_every_option_is_in_the_table() -> None:
    assert OPTIONS.keys() == inspect.signature(run_model).parameters.keys() - NOT_SETTINGS - SPEECH_ONLY - {
        "document_format",
        "generation_config",
        "glossary",
        "decoder_input_text",
        "live",
        "stop_strings",
        "do_sample",
        "trie",
        "num_beam_groups",
        "punctuation",
        "diversity_penalty",
        "source_language",
        "target_language",
        "return_token_scores",
        "return_alternatives",
        "return_attention",
        *SAMPLING,
    }


def test_text_models_take_no_recordings(bundle: Path, call: Command) -> None:
    call(bundle, "--sound-input", stdin=b"RIFF").failed("--sound-input is for speech models", "leave it out")
    call(bundle, "--format", "srt", stdin=b"a text").failed("--format srt is for speech models", "leave it out")
    call(bundle, "talk.wav").failed("talk.wav is an audio file, and this is a text model; pass a text file")


@pytest.mark.parametrize("name", SAMPLING)
def test_option_of_sampling_reaches_the_search(bundle: Path, call: Command, runner: Runner, name: str) -> None:
    ids = [runner.encode(SENTENCES[0])[0]]
    settings = {"num_beams": 1, "seed": 1, "max_new_tokens": 12, name: SAMPLING[name]}
    expected = runner.generate(ids, do_sample=True, **settings)
    options = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    done = call(bundle, "-", "--json", "--do-sample", *options, stdin=SENTENCES[0].encode()).succeeded()
    assert done.records[0]["tokens"] == expected.sequences[0, : len(done.records[0]["tokens"])].tolist()


@pytest.mark.parametrize("name", OPTIONS)
def test_option_reaches_the_search(
    bundle: Path, texts: Path, call: Command, runner: Runner, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    sample = Model.sample

    def recording(self: Model, number: int, tokens: Any, settings: Any, mask: Any = None) -> Any:
        given.append(settings)
        return sample(self, number, tokens, settings, mask)

    base = {"num_beams": 4} if name != "num_beams" else {}
    for value in OPTIONS[name]:
        settings = {**base, name: value}
        ids = np.array([runner.encode(SENTENCES[0])[0]])
        expected = runner.generate(ids, **settings)
        with monkeypatch.context() as patch:
            patch.setattr(Model, "sample", recording)
            options = [part for key, v in settings.items() for part in (f"--{key.replace('_', '-')}", str(v))]
            done = call(bundle, "-", "--json", *options, stdin=SENTENCES[0].encode()).succeeded()
        assert merged(list(caller_layers(given.pop()))) == settings
        assert not given
        record = done.records[0]
        assert record.get("sequences", [record["tokens"]]) == expected.sequences.tolist()


def test_generation_config_is_a_file_of_settings_below_the_options(
    bundle: Path, call: Command, runner: Runner, tmp_path: Path
) -> None:
    config = tmp_path / "settings.json"
    config.write_text(json.dumps({"num_beams": 2, "bad_words_ids": [[9]], "max_new_tokens": 9, "min_length": None}))
    ids = call(bundle, "-", "--ids", "--json", "--generation-config", config, *SHORT, stdin=b"[5, 6, 2]").succeeded()
    expected = runner.generate(np.array([[5, 6, 2]]), num_beams=2, bad_words_ids=[[9]], max_new_tokens=5)
    assert ids.records[0]["tokens"] == expected.sequences[0].tolist()


def test_ids_in_and_ids_out(without_tokenizer: Path, call: Command, runner: Runner) -> None:
    plain = call(without_tokenizer, "--ids", *SHORT, stdin=b"[5, 6, 2]\n [ 7,2 ] \n").succeeded()
    one, two = (runner.generate(np.array([ids]), max_new_tokens=5).sequences[0] for ids in ([5, 6, 2], [7, 2]))
    got = [[int(token) for token in line.split()] for line in plain.out.splitlines()]
    assert [row[: len(want)] for row, want in zip(got, (one, two), strict=True)] == [one.tolist(), two.tolist()]
    with_text = call(without_tokenizer, "--ids", "--json", *SHORT, stdin=b"[5, 6, 2]").succeeded()
    assert "text" not in with_text.records[0]


def test_document_joins_the_lines(bundle: Path, call: Command, runner: Runner) -> None:
    done = call(bundle, "-", "--document", *SHORT, stdin=b"a small town\nby the river\r\nhas opened").succeeded()
    assert done.out.splitlines() == runner.generate_text(["a small town by the river has opened"], max_new_tokens=5)


def test_truncate_prints_a_note(bundle: Path, call: Command, runner: Runner) -> None:
    long = "the harbour bridge " * 40
    stdin = f"a small town\n{long}\n".encode()
    done = call(bundle, "-", "--truncate", "--json", *SHORT, stdin=stdin)
    assert done.code == 0
    whole = len(runner.model.text.require_tokenizer().encode(long))
    assert done.messages == [
        f"note: standard input, line 2: cut at its end from {whole} to 64 tokens, which the model has positions for"
    ]
    assert [record.get("truncated") for record in done.records] == [None, True]
    assert done.records[1]["text"] == runner.generate_text([long], truncate=True, max_new_tokens=5)[0]
    call(bundle, "-", *SHORT, stdin=stdin).failed("line 2", "longer than the model's 64 positions", "--truncate")


@pytest.mark.parametrize(
    ("stdin", "lines"),
    [
        (b"", []),
        (b"a small town", ["a small town"]),
        (b"a small town\r\nby the river\r\n", ["a small town", "by the river"]),
        (b"\xef\xbb\xbfa small town\n", ["a small town"]),
        (b"a\x00small town\n", ["a\x00small town"]),
        ("naïve café 雪\n".encode(), ["naïve café 雪"]),
    ],
    ids=["empty", "no newline", "crlf", "byte order mark", "nul", "beyond ascii"],
)
def test_line_ends_and_odd_characters(
    bundle: Path, call: Command, runner: Runner, stdin: bytes, lines: list[str]
) -> None:
    done = call(bundle, *SHORT, stdin=stdin).succeeded()
    assert done.out.splitlines() == runner.generate_text(lines, max_new_tokens=5)


def test_output_is_utf8_in_any_locale(bundle: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"}
    process(bundle, "é.txt", env=environment).failed("é.txt")
    imports = "from tightbeam.deploy.commands.run_model import main\nfrom tightbeam.deploy.model.texts import Texts\n"
    program = f"{imports}Texts.decode = lambda *_: '雪'\nmain()"
    done = process(bundle, stdin=b"a town\n", command=[sys.executable, "-c", program], env=environment)
    assert done.succeeded().out == "雪\n"


def test_results_go_to_standard_output_while_the_bar_is_on_the_terminal(bundle: Path, texts: Path) -> None:
    leader, follower = pty.openpty()
    command = [*MODULE, str(bundle), str(texts), *SHORT]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env=environment) as running:
        os.close(follower)
        assert running.stdout is not None
        out = running.stdout.read().decode()
    os.close(leader)
    assert running.returncode == 0
    assert len(out.splitlines()) == len(SENTENCES)
    assert "\x1b" not in out


# Bad lines


def test_three_bad_lines_of_a_thousand(bundle: Path, call: Command, runner: Runner, tmp_path: Path) -> None:
    good = [" ".join(text.split()[: 2 + index % 7]) for index in range(5) for text in SENTENCES]
    expected = {text: runner.generate_text([text], num_beams=1, max_new_tokens=4)[0] for text in good}
    assert len(set(expected.values())) > 10  # else the order could not be seen
    wanted = [good[index % len(good)] for index in range(1000)]
    lines = [text.encode() for text in wanted]
    bad = {1: b"", 500: b"caf\xe9", 1000: b"the harbour bridge " * 40}
    for number, line in bad.items():
        lines[number - 1] = line
    path = tmp_path / "thousand.txt"
    path.write_bytes(b"\n".join(lines))

    done = call(bundle, path, "--num-beams", 1, "--max-new-tokens", 4, "--batch-size", 16)
    assert done.code == 1
    out = done.out.split("\n")[:-1]
    assert len(out) == 1000
    for number, (text, got) in enumerate(zip(wanted, out, strict=True), start=1):
        assert got == ("" if number in bad else expected[text]), number
    errors = done.messages
    assert [line.split(":")[:2] for line in errors[:3]] == [["error", f" {path}, line {number}"] for number in bad]
    assert [part in line for part, line in zip(("empty text", "0xe9", "64 positions"), errors, strict=False)] == [
        True
    ] * 3
    assert errors[3:] == ["error: 3 of the lines could not be run; each is named above"]


def test_bad_lines_keep_their_place_among_several_sequences(bundle: Path, call: Command) -> None:
    options = ("--num-beams", 2, "--num-return-sequences", 2, *SHORT)
    out = call(bundle, "-", *options, stdin=b"a small town\n\nby the river\n").failed("line 2", "empty").out
    assert [bool(line) for line in out.split("\n")] == [True, True, False, False, True, True, False]
    records = call(bundle, "-", "--json", *options, stdin=b"a small town\n\nby the river\n").failed("line 2").records
    assert [len(record.get("sequences", [])) for record in records] == [2, 0, 2]
    assert set(records[1]) == {"line", "error"}


BAD_IDS = {
    "[5, 101]": "101 is outside the vocabulary; expected 0 to 100",
    "[-1]": "-1 is outside the vocabulary",
    "[1.0, 2]": "not a JSON list of token ids",
    "[[5, 2]]": "not a JSON list",
    "[true]": "not a JSON list",
    "[]": "an empty list of token ids; expected at least one",
    "5 6 2": "not a JSON list",
    '["5"]': "not a JSON list",
    "[NaN]": "not a JSON list",
    "null": "not a JSON list",
    "": "not a JSON list",
    "[" * 100_000: "100,000 marks",
    f"[{10**30}]": "is outside the vocabulary",
    f"[{'9' * 5000}]": "not a JSON list",
    json.dumps([5] * 65): "65 token ids are more than the model's 64 positions",
    "a town": "not a JSON list",
}


def test_bad_ids(bundle: Path, call: Command) -> None:
    stdin = "".join(f"{line}\n[5, 2]\n" for line in BAD_IDS).encode()
    done = call(bundle, "-", "--ids", "--json", *SHORT, stdin=stdin).failed("16 of the lines")
    for index, (record, reason) in enumerate(zip(done.records[::2], BAD_IDS.values(), strict=True)):
        assert reason in record["error"], (index, record)
    assert all(record["tokens"] == done.records[1]["tokens"] for record in done.records[1::2])


def test_a_line_of_a_megabyte(bundle: Path, call: Command) -> None:
    done = call(bundle, "-", *SHORT, stdin=b"a" * 2**20 + b"\na small town\n").failed(
        "line 1", "longer than the model's"
    )
    assert done.out.startswith("\n") and done.out.count("\n") == 2


# Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "parts", "code"),
    [
        (["{missing}/bundle", "{texts}"], ["bundle is not a folder", "export-model"], 1),
        (["{texts}", "{texts}"], ["is not a folder"], 1),
        (["{bundle}", "{missing}/a.txt"], ["there is no file", "a.txt", "standard input"], 1),
        (["{bundle}", "{bundle}"], ["is a folder", "pass a text file"], 1),
        (["{bundle}", "a\nb\x1b2J"], ["there is no file", r"a\nb\x1b2J"], 1),
        (["{bundle}", "a\nb\x1b[2J"], ["no file matches", r"a\nb\x1b[2J"], 1),
        ([], ["Missing argument", "--help"], 2),
        (["{bundle}", "{texts}", "more"], ["there is no file more; pass a text file"], 1),
        (["{bundle}", "Where is it?"], ["no file matches Where is it?; a text of the command line is --prompt"], 1),
        (["{bundle}", "a small town"], ["there is no file a small town; a text of the command line is --prompt"], 1),
        (["{bundle}", "my texts.txt"], ["there is no file my texts.txt; pass a text file"], 1),
        (["{bundle}", "--stream=true"], ["Option '--stream' does not take a value; see run-model --help"], 2),
        (["{bundle}", "-cnv"], ["No such option: -cnv; a conversation is --chat"], 2),
        (["{bundle}", "-p", "a town"], ["No such option: -p; inputs are files", "--prompt TEXT"], 2),
        (["{bundle}", "-", "{texts}", "-"], ["named twice"], 1),
        (["{bundle}", "--sample"], ["No such option: --sample; sampling is --do-sample"], 2),
        (["{bundle}", "--beam_size", "4"], ["No such option: --beam_size; beams are --num-beams; see run-model"], 2),
        (["{bundle}", "--temp", "1"], ["No such option: --temp; the temperature is --temperature"], 2),
        (["{bundle}", "--num_beams", "4"], ["No such option: --num_beams; it is written --num-beams"], 2),
        (["{bundle}", "--bad-words-ids", "[[1]]"], ["pass it in a file: --generation-config FILE"], 2),
        (["{bundle}", "--key-field", "id"], ["are for --ray; leave them out, or add --ray"], 1),
        (
            ["{bundle}", "--top-k", "4"],
            ["top_k=4", "does nothing without do_sample; pass --do-sample, or leave it out"],
            1,
        ),
        (["{bundle}", "--force"], ["--force replaces the --output file"], 1),
        (["{bundle}", "--num-beam", "3"], ["--num-beam", "--num-beams"], 2),
        (["{bundle}", "--num-beams", "many"], ["--num-beams", "integer"], 2),
        (["{bundle}", "--batch-size", "0"], ["--batch-size"], 2),
        (["{bundle}", "--threads", "0"], ["--threads"], 2),
        (["{bundle}", "--device", "tpu"], ["device='tpu'", "cpu, cuda"], 1),
        (["{bundle}", "--device", "cuda", "--threads", "2"], ["threads=2", "device='cuda'", "leave threads out"], 1),
        (["{bundle}", "--threads", "100000"], ["threads=100000", "1024"], 1),
        (["{bundle}", "--num-beams", "0"], ["num_beams=0", "pass 1 or more"], 1),
        (["{bundle}", "--num-beams", "51"], ["num_beams=51", "vocabulary has 101", "pass --num-beams 50 or less"], 1),
        (["{bundle}", "--num-beams", "9" * 400], ["num_beams", "65536"], 1),
        (["{bundle}", "--num-return-sequences", "5"], ["num_return_sequences=5", "num_beams"], 1),
        (["{bundle}", "--max-new-tokens", "0"], ["max_new_tokens=0"], 1),
        (
            ["{bundle}", "--max-new-tokens", "64"],
            ["max_new_tokens=64", "64 positions", "pass --max-new-tokens 63 or less"],
            1,
        ),
        (["{bundle}", "--length-penalty", "nan"], ["length_penalty=nan", "finite"], 1),
        (["{bundle}", "--early-stopping", "maybe"], ["early_stopping='maybe'", "never"], 1),
        (["{bundle}", "--forced-bos-token-id", "101"], ["forced_bos_token_id", "0 to 100"], 1),
        (
            ["{bundle}", "--generation-config", "{missing}/s.json"],
            ["there is no file", "s.json", "pass a JSON file"],
            1,
        ),
        (["{bundle}", "--generation-config", "{texts}"], ["texts.txt", "as JSON"], 1),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_wrong_arguments_are_one_line_errors(
    bundle: Path, texts: Path, tmp_path: Path, call: Command, arguments: list[str], parts: list[str], code: int
) -> None:
    names = {"bundle": bundle, "texts": texts, "missing": tmp_path / "missing"}
    filled = [argument.format(**names) for argument in arguments]
    done = call(*filled, stdin=b"a small town\n").failed(*parts, code=code)
    assert done.out == ""
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"{", "as JSON"),
        (b"\xff", "as JSON"),
        (b"[" * 100_000, "as JSON"),
        (b"[4]", "holds no JSON object"),
        (b'{"num_beam": 4}', "did you mean num_beams?"),
        (b'{"do_sample": true, "num_beams": 2, "top_h": 0.5}', "top_h"),
        (b'{"num_beams": "4"}', "num_beams='4'"),
        (b'{"length_penalty": NaN}', "finite"),
        (b'{"bad_words_ids": [[]]}', "bad_words_ids"),
    ],
)
def test_bad_generation_config(bundle: Path, call: Command, tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    done = call(bundle, "-", "--generation-config", path, stdin=b"a small town\n").failed(part)
    assert len(done.err.splitlines()) == 1


def test_text_for_a_bundle_without_tokenizer(without_tokenizer: Path, call: Command) -> None:
    call(without_tokenizer, "-", stdin=b"a small town\n").failed("has no tokenizer", "its checkpoint has none", "--ids")


def test_damaged_bundle(bundle: Path, call: Command, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "damaged"))
    with (damaged / "decoder.onnx").open("ab") as stream:
        stream.write(b"more")
    call(damaged, "-", stdin=b"a\n").failed("decoder.onnx", "export the model again")
