"""The comparison with other engines (`python -m tools.bench.peers`): workers, rounds, results, tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from support.commands import Command, caller
from tightbeam.deploy import Runner
from tools.bench.peers.__main__ import main
from tools.bench.peers.contenders import EXACT, REFERENCE, Place
from tools.bench.peers.engines import ctranslate2, llama_cpp, tightbeam, transformers
from tools.bench.peers.environments import PeerError, python_of
from tools.bench.peers.jobs import RECORDING, TEXT, Job, random_job
from tools.bench.peers.measure import measure
from tools.bench.peers.peer import Peer
from tools.bench.peers.results import Cell, Group, Record, Results
from tools.bench.peers.table import as_markdown
from tools.bench.peers.worker import WINDOW_SAMPLES, features, new_tokens, recording
from tools.make_checkpoint import GENERATION, SHAPES, generation_of

ROWS = [[0, 5, 6, 7, 2], [0, 8, 9, 2], [0, 11, 2]]
SETTINGS: dict[str, Any] = {
    "num_beams": 3,
    "no_repeat_ngram_size": 3,
    "length_penalty": 1.0,
    "early_stopping": True,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
OTHER = "CTranslate2 int8"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.bench.peers.peer.SETTLE_SECONDS", 0)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in this process."""
    return partial(caller(monkeypatch, capsys), entry=main)


@pytest.mark.slow
def test_workers_give_the_tokens_of_the_runner(
    bundles: BundleCache, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    runner = Runner.load(bundles("dedup"))
    generation = runner.manifest.generation
    job = Job(ROWS, SETTINGS, 5, (generation["decoder_start_token_id"],), generation["eos_token_id"])
    lengths = {"min_new_tokens": 5, "max_new_tokens": 5}
    expected = [runner.generate(np.array([row]), **SETTINGS, **lengths).sequences[0].tolist()[1:] for row in ROWS]
    assert [len(row) for row in expected] == [5, 5, 5]
    for engine, folder in (("tightbeam", bundles("dedup")), ("transformers", checkpoints("bart"))):
        peer = Peer(engine, Path(sys.executable), engine, folder, "fp32", TEXT, 1, tmp_path / "log")
        try:
            found = peer.run(job.message(3, 5))
            assert peer.run(job.message(3, 5, 1))["tokens"] == expected[:1]
            assert [len(row) for row in peer.run(job.message(2, 3))["tokens"]] == [3, 3]
        finally:
            peer.close()
        assert found["tokens"] == expected
        assert found["seconds"] > 0 and found["processor_seconds"] > 0
        assert 10 < peer.loaded["memory_mb"]["now"] <= found["memory_mb"]["peak"]
        assert "torch" in peer.loaded["versions"] or "onnxruntime" in peer.loaded["versions"]


def test_prompts_are_left_out_of_what_is_generated(bundles: BundleCache, checkpoints: CheckpointCache) -> None:
    """Decoder-only engines in this process, over prompts of mixed lengths."""
    job = {"settings": {"num_beams": 3, "max_new_tokens": 5}, "prompt": [], "eos": [2, 3], "mels": 0}
    found = []
    for engine, folder in ((tightbeam, bundles("dedup", "llama")), (transformers, checkpoints("llama"))):
        prepare, generate = engine.load(str(folder), "fp32", False, 1)
        found.append([new_tokens(row, [], [2, 3]) for row in generate(prepare(ROWS), job)])
    assert found[0] == found[1] and any(map(any, found[0]))


def test_features_are_those_of_a_sample_in_any_batch() -> None:
    assert features([3, 4], 80).shape == (2, 80, 3000)
    np.testing.assert_array_equal(features([4], 128)[0], features([3, 4], 128)[1])
    np.testing.assert_array_equal(recording([4]), recording([3, 4])[WINDOW_SAMPLES:])


def test_recordings_give_the_tokens_of_their_windows(bundles: BundleCache, checkpoints: CheckpointCache) -> None:
    """The engines in this process, over windows of a second."""
    runner = Runner.load(bundles("dedup", "whisper"), threads=1)
    assert runner.log_mel is not None
    generation, size = runner.manifest.generation, runner.log_mel.samples
    start, eos = generation["decoder_start_token_id"], generation["eos_token_id"]
    settings = {"num_beams": 3, "suppress_tokens": [eos, start], "max_new_tokens": 5}
    job = {"settings": settings, "prompt": [start], "eos": [eos]}
    samples = np.random.default_rng(0).uniform(-1, 1, 3 * size).astype(np.float32)
    samples[size:] *= np.sin(np.arange(2 * size) ** 2 / 4e5)
    samples[2 * size :] = np.sin(np.arange(size) / 7)
    windows = np.stack([runner.log_mel.features(each) for each in samples.reshape(3, size)])
    sequences = runner.generate_from_features(windows, **settings, return_timestamps=False).sequences.tolist()
    expected = [row[1:] for row in sequences]
    assert len({tuple(row) for row in expected}) > 1
    for engine, folder in ((tightbeam, bundles("dedup", "whisper")), (transformers, checkpoints("whisper"))):
        log_mel, transcribe = engine.load_recordings(str(folder), "fp32", 1)
        log_mel(samples)
        assert [new_tokens(row, [start], [eos]) for row in transcribe(samples, job)] == expected


def test_vocabulary_map_has_candidates_of_any_text_and_of_each_token(tmp_path: Path) -> None:
    tokens = [str(token) for token in range(300)]
    ctranslate2._write_map(tmp_path / "vmap.txt", tokens)
    sources, candidates = zip(
        *(line.split("\t") for line in (tmp_path / "vmap.txt").read_text().splitlines()), strict=True
    )
    assert sources == ("", *tokens)
    assert [len({*row.split()} & {*tokens}) for row in candidates] == [200, *[5] * 300]


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-onnxruntime"])
def test_floor_runs_the_products_of_a_bundle(bundles: BundleCache, tmp_path: Path, precision: str) -> None:
    job = Job(ROWS, SETTINGS, 5, (2,), 2)
    peer = Peer("floor", Path(sys.executable), "floor", bundles("dedup"), precision, TEXT, 1, tmp_path / "log")
    try:
        found = peer.run(job.message(3, 5))
    finally:
        peer.close()
    assert found["tokens"] == [] and found["seconds"] > 0


def test_failure_of_a_worker_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"^mine ended with code 1 \(.*no bundle.*\); see .*/log$") as failed:
        Peer("mine", Path(sys.executable), "tightbeam", tmp_path, "fp32", TEXT, 1, tmp_path / "log")
    assert "\n" not in str(failed.value)


def test_missing_environment_names_the_command(peers: Command, tmp_path: Path) -> None:
    with pytest.raises(
        PeerError, match=rf"run: python -m tools.bench.peers install --environments {tmp_path} --only optimum$"
    ):
        python_of(tmp_path, "optimum")
    command = ["run", "--shape", "demo", "--engine", "OpenVINO int8", "--work", str(tmp_path)]
    folders = ["--environments", str(tmp_path / "x"), "--results", str(tmp_path / "r")]
    done = peers(*command, *folders)
    assert done.code == 1
    assert re.fullmatch(r"error: .*/x/openvino has not .*; run: .*\n", done.err)


@pytest.mark.parametrize(
    "arguments", ["run --shape x", "run --engine x", "install --only x", "run --shape marian-base --recording"]
)
def test_wrong_options_are_one_line(peers: Command, arguments: str) -> None:
    done = peers(*arguments.split())
    assert done.code == 2
    assert re.fullmatch(r"error: .* (unknown; pass |is for speech models).*\n", done.err)


@pytest.mark.parametrize("shape", ["bart-large-cnn", "marian-base", "whisper-small"])
def test_job_forces_the_same_tokens_for_all(tmp_path: Path, shape: str) -> None:
    family = GENERATION[SHAPES[shape].family]
    (tmp_path / "generation_config.json").write_text(json.dumps(family))
    job = random_job(shape, tmp_path, 9, 16, 4, 20)
    message = job.message(4, 2)
    assert [len(batch) for batch in message["batches"]] == [4]
    assert list(message["batches"][0]) == list(random_job(shape, tmp_path, 4, 16, 4, 20).samples)
    settings = message["settings"]
    assert settings["max_new_tokens"] == 2
    assert job.lengths == (2, 20)
    forced = settings.get("min_new_tokens") == 2 and settings["forced_eos_token_id"] is None
    assert forced != (family["eos_token_id"] in settings.get("suppress_tokens", []))
    assert message["prompt"][0] == family["decoder_start_token_id"]


def test_job_of_recordings_begins_with_their_features_and_forces_text(tmp_path: Path) -> None:
    shape = SHAPES["whisper-large-v3-turbo"]
    (tmp_path / "generation_config.json").write_text(json.dumps(generation_of(shape)))
    job = random_job("whisper-large-v3-turbo", tmp_path, 2, 0, 5, 20, RECORDING)
    assert job.lengths == (0, 2, 20) and job.mels == 128
    assert job.prompt == (50258, 50259, 50360, 50364)
    message = job.message(2, 20)
    assert message["settings"]["suppress_tokens"] == list(range(50257, 51866))
    assert "min_new_tokens" not in message["settings"] and list(message["batches"][0]) == [0, 1]


class _Fixed:
    """An engine that always gives the same tokens; a step takes it ``step`` seconds, the encoder 1 second."""

    def __init__(self, tokens: list[list[int]], step: float = 0.5) -> None:
        self.loaded = {"versions": {"mine": "1.0"}}
        self.tokens, self.step = tokens, step
        self.jobs: list[tuple[int, int]] = []

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        count, length = sum(map(len, job["batches"])), job["settings"]["max_new_tokens"]
        self.jobs.append((count, length))
        seconds = 1 + self.step * length
        tokens = [row[:length] for row in self.tokens[:count]]
        return {"tokens": tokens, "seconds": seconds, "processor_seconds": 1.0, "memory_mb": {"peak": 70.0}}

    def close(self) -> None:
        self.jobs.append((0, 0))


TOKENS = [[5, 6, 7], [8, 9, 10]]
WRONG = [[5, 6, 7], [8, 9, 11]]


def _groups(*batches: int) -> list[tuple[Group, Job]]:
    return [(Group("demo", 4, 3, 2, 4, size), Job(ROWS[:size], {}, 3, (2,), 2)) for size in batches]


def _measure(path: Path, engines: dict[str, _Fixed], rounds: int = 2, batches: tuple[int, ...] = (1, 2)) -> Results:
    results = Results(path)
    start: Callable[[str], Any] = engines.__getitem__
    measure(_groups(*batches), list(engines), rounds, results, start, lambda line: None)
    return Results(path)


def test_encoder_and_step_come_from_two_lengths_and_the_rest_is_counted(tmp_path: Path) -> None:
    engines = {REFERENCE: _Fixed(TOKENS), EXACT: _Fixed(TOKENS, 0.25), OTHER: _Fixed(WRONG), "floor int8": _Fixed([])}
    results = _measure(tmp_path / "r", engines)
    one, two = results.groups()
    reference, exact, other, floor = results.figures(two)
    assert (exact.encoder_s, exact.step_ms, exact.job_s, exact.samples_per_second) == (1, 250, 1.75, 2 / 1.75)
    assert (reference.equal, exact.equal, other.equal, floor.equal) == (None, 2, 1, None)
    assert [each.compared for each in results.figures(one)] == [1, 1, 1, 0]
    assert (other.rounds, other.samples, floor.samples) == (2, 2, 2)
    assert engines[EXACT].jobs == [(1, 2), *[(1, 2), (1, 3)] * 2, (2, 2), *[(2, 2), (2, 3)] * 2, (0, 0)]


def test_wrong_tokens_in_float32_end_the_run_and_are_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="1 of 2 sequences are wrong"):
        _measure(tmp_path / "r", {REFERENCE: _Fixed(TOKENS), EXACT: _Fixed(WRONG)})
    assert [(group.batch, len(Results(tmp_path / "r").figures(group))) for group in _of(tmp_path / "r")] == [
        (1, 2),
        (2, 1),
    ]


def test_sequence_of_the_reference_at_any_batch_size_is_equal(tmp_path: Path) -> None:
    """A tie of scores may fall otherwise in a larger batch."""
    _measure(tmp_path / "r", {REFERENCE: _Fixed(TOKENS)}, 1, (2,))
    other = [[5, 6, 1], [8, 9, 10], [1, 2, 3]]
    results = _measure(tmp_path / "r", {REFERENCE: _Fixed(other), EXACT: _Fixed([*TOKENS, [1, 2, 3]])}, 1, (2, 3))
    assert [results.figures(group)[1].equal for group in results.groups()] == [2, 3]


def _of(path: Path) -> list[Group]:
    return Results(path).groups()


def test_later_call_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    _measure(tmp_path / "r", {REFERENCE: _Fixed(TOKENS)}, 1, (2,))
    again, other = _Fixed(TOKENS), _Fixed(WRONG)
    results = _measure(tmp_path / "r", {REFERENCE: again, OTHER: other}, 1, (1, 2))
    assert again.jobs == [(1, 2), (1, 2), (1, 3), (0, 0)]
    assert [(each.engine, each.equal) for each in results.figures(results.groups()[1])] == [
        (REFERENCE, None),
        (OTHER, 1),
    ]
    before = (tmp_path / "r").read_bytes()
    _measure(tmp_path / "r", {REFERENCE: again, OTHER: other}, 1, (1, 2))
    assert (tmp_path / "r").read_bytes() == before


def test_half_a_line_of_a_killed_run_is_overwritten(tmp_path: Path) -> None:
    _measure(tmp_path / "r", {REFERENCE: _Fixed(TOKENS)}, 1, (2,))
    whole = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(whole + whole[:40])
    results = _measure(tmp_path / "r", {REFERENCE: _Fixed(TOKENS)}, 1, (1, 2))
    assert [results.rounds(Cell(group, REFERENCE)) for group in results.groups()] == [1, 1]
    assert (tmp_path / "r").read_bytes().startswith(whole + b"{")
    (tmp_path / "r").write_bytes(b"{}\n" + whole)
    with pytest.raises(PeerError, match=r"r, line 1 is not a record \([^\n]+\); delete the line$"):
        Results(tmp_path / "r")


def test_sequences_are_compared_with_those_of_another_batch_size(tmp_path: Path) -> None:
    _measure(tmp_path / "r", {REFERENCE: _Fixed(TOKENS)}, 1, (1,))
    results = _measure(tmp_path / "r", {EXACT: _Fixed(WRONG)}, 1, (2,))
    (exact,) = results.figures(results.groups()[1])
    assert (exact.equal, exact.compared) == (1, 1)


def _record(engine: str, step_s: float, batch: int = 8, **fields: Any) -> Record:
    """A round of 3 new tokens, whose encoder took a second."""
    group = Group("bart-large-cnn", 512, 3, 2, 4, batch)
    values = {"processor_seconds": [1.0, 1.0], "tokens": TOKENS * (batch // 2), "peak_mb": 1234.4}
    about = {"versions": {engine: "1.0"}, "when": "2026-11-22T15:50:00+00:00", "load": 0.1}
    return Record(group, engine, [1 + 2 * step_s, 1 + 3 * step_s], **{**values, **about, **fields})


def test_table_shows_the_fastest_and_the_distance_to_the_floor(tmp_path: Path) -> None:
    results = Results(tmp_path / "r")
    for record in (
        _record(REFERENCE, 1),
        _record(EXACT, 0.5),
        _record(EXACT, 0.7),
        _record(OTHER, 0.2, tokens=[[0], *(TOKENS * 4)[1:]]),
        _record("floor fp32", 0.25, tokens=[]),
        _record("floor int8", 0.1, tokens=[]),
    ):
        results.add(record)
    text = as_markdown(results)
    rows = [line for line in text.splitlines() if line.startswith("| 8")]
    assert text.startswith("**bart-large-cnn**: 512 tokens in, 3 out, 4 beams, 2 threads\n")
    assert rows[0] == "| 8 | transformers | 1.00 (1.00) | 1000.0 (4.00) | 4.00 | 2 | 1,234 |  |"
    assert rows[1] == f"| 8 | {EXACT} | 1.00 (1.00) | 600.0 (2.40) | 2.80 (2.50, 3.10) | 2.86 | 1,234 | 8 of 8 |"
    assert rows[2] == f"| 8 | {OTHER} | 1.00 (1.00) | 200.0 (2.00) | 1.60 | **5** | 1,234 | 7 of 8 |"
    assert rows[3] == "| 8 | floor fp32 | 1.00 | 250.0 | 1.75 | 4.57 |  |  |"
    assert "2026-11-22, " in text and "transformers 1.0" in text


@pytest.mark.parametrize(
    ("row", "prompt", "tokens"),
    [([2, 0, 5, 2, 1, 1], [2], [0, 5]), ([2, 0, 5], [2], [0, 5]), ([2, 2], [2], []), ([0, 5], [2], [0, 5])],
)
def test_padding_and_prompt_are_dropped(row: list[int], prompt: list[int], tokens: list[int]) -> None:
    assert new_tokens(row, prompt, [2]) == tokens


def test_model_that_is_missing_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str, str]] = []

    def convert(python: Path, engine: str, source: Path, folder: Path, precision: str, task: str) -> None:
        made.append((engine, source.name, precision))
        folder.mkdir()

    monkeypatch.setattr("tools.bench.peers.peer.convert", convert)
    monkeypatch.setattr("tools.bench.peers.contenders.python_of", lambda root, name: Path("python"))
    place = Place("demo", TEXT, tmp_path, tmp_path, lambda line: None)
    for _ in range(2):
        assert place.model("optimum-onnx int8").name == "demo-optimum-int8"
        assert place.model("floor int8") == place.model(EXACT)
    assert made == [
        ("optimum", "demo", "fp32"),
        ("optimum", "demo-optimum-fp32", "int8"),
        ("tightbeam", "demo", "fp32"),
    ]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_matrices_that_no_block_divides_are_f16_for_llama_cpp(
    checkpoints: CheckpointCache, tmp_path: Path, precision: str
) -> None:
    from gguf import GGUFReader

    llama_cpp.convert(str(checkpoints("llama")), str(tmp_path / "b"), precision, False)
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(str(tmp_path / "b" / "model.gguf")).tensors}
    widths = {tensor.name: int(tensor.shape[0]) for tensor in GGUFReader(str(tmp_path / "b" / "model.gguf")).tensors}
    matrices = {name for name, kind in types.items() if "norm" not in name}
    assert matrices and {types[name] for name in types.keys() - matrices} == {"F32"}
    for name in matrices:
        assert (types[name] == "F16") == bool(widths[name] % 32), name
