"""Rows, `Generate` and the actor of the command, without a cluster."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tightbeam
from tightbeam.deploy import InputError, NoEffectWarning, Runner
from tightbeam.deploy.errors import DeviceError, ExecutionError
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.model.texts import Texts
from tightbeam.deploy.ray import Generate, worker
from tightbeam.deploy.ray.input_data import cut, find_files
from tightbeam.deploy.ray.job import StartCounter
from tightbeam.deploy.ray.partition import FieldNames
from tightbeam.deploy.ray.rows import RowSettings, lines_of_values, run_rows
from tightbeam.deploy.ray.worker import MOST_STARTS, Job, PartitionWorker
from tightbeam.deploy.run_model.record import bundle_digest
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu

BUNDLE = Path(__file__).resolve().parents[2] / "data" / "bundle-format-2"
SETTINGS = RowSettings({"num_beams": 2, "max_new_tokens": 6})
TEXTS = ["a small town", "the river has a boat", "two boats", "hills"]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner.load(BUNDLE, threads=1)


def rows_of(runner: Runner, sources: list[object], settings: RowSettings = SETTINGS) -> list[InputResult]:
    return run_rows(runner.model, lines_of_values({"text": sources}), settings, name="text")


def test_rows_that_cannot_be_run_cost_no_other_row_its_result(runner: Runner) -> None:
    hostile: list[object] = [None, 7, " ", "\ud800", "word " * 3000, {}]
    results = rows_of(runner, [*TEXTS[:2], *hostile, *TEXTS[2:]])
    assert [result.number for result in results] == list(range(1, 11))
    assert [result.error is None for result in results] == [True] * 2 + [False] * 6 + [True] * 2
    alone = runner.generate_text(TEXTS, num_beams=2, max_new_tokens=6)
    assert [result.texts[0] for result in results if result.texts] == alone


def test_ids(runner: Runner) -> None:
    ids = [runner.encode(text)[0] for text in TEXTS]
    by_text = rows_of(runner, list(TEXTS))
    by_ids = rows_of(runner, [*ids, ["a"], [], [10**6], "text"], replace(SETTINGS, ids=True))
    assert [result.sequences for result in by_ids[:4]] == [result.sequences for result in by_text]
    assert all(result.error for result in by_ids[4:])


@pytest.mark.parametrize("error", [ExecutionError("out of memory"), DeviceError("the GPU is lost")])
def test_a_runtime_that_fails(runner: Runner, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A row that makes it fail has the error alone; a lost device ends the actor's work."""
    tokens = [set(runner.encode(text)[0]) for text in TEXTS]
    token = (tokens[1] - tokens[0] - tokens[2] - tokens[3]).pop()
    encode = OnnxRuntimeCpu._encode

    def fails(self: OnnxRuntimeCpu, source: Any, *args: Any, **named: Any) -> Any:
        if (source == token).any():
            raise error
        return encode(self, source, *args, **named)

    expected = rows_of(runner, list(TEXTS))
    monkeypatch.setattr(OnnxRuntimeCpu, "_encode", fails)
    if isinstance(error, DeviceError):
        with pytest.raises(DeviceError, match="lost"):
            rows_of(runner, list(TEXTS))
        return
    results = rows_of(runner, list(TEXTS))
    assert [result.error for result in results] == [None, "out of memory", None, None]
    assert [result.sequences for result in results if not result.error] == [
        result.sequences for result, found in zip(expected, results, strict=True) if not found.error
    ]


def test_generate_appends_columns(runner: Runner) -> None:
    arrow = pytest.importorskip("pyarrow")
    with pytest.warns(NoEffectWarning, match="output_scores"):
        generate = Generate(BUNDLE, "body", threads=1, num_beams=2, max_new_tokens=6, output_scores=True)
    table = generate(arrow.table({"key": list("abcde"), "body": [*TEXTS, None]}))
    assert table.column_names[:3] == ["key", "body", "generated_text"]
    assert table.column("generated_text").to_pylist()[:4] == runner.generate_text(TEXTS, num_beams=2, max_new_tokens=6)
    assert table.column("generated_error").to_pylist() == [None] * 4 + [
        "body is NoneType, expected a text or a list of messages; pass one of them"
    ]
    with pytest.raises(InputError, match="has no column 'body', its columns are x"):
        generate(arrow.table({"x": [1]}))
    with pytest.raises(InputError, match="pass batch_format='pyarrow'"):
        generate({"body": np.array(TEXTS)})
    with pytest.raises(InputError, match="batch_size=0"):
        Generate(BUNDLE, batch_size=0)


@pytest.mark.parametrize("kind", ["struct", "map", "json"])
def test_settings_of_rows(runner: Runner, kind: str) -> None:
    """A row's settings override those of all rows; wrong ones are its error, and its neighbours have their results."""
    arrow = pytest.importorskip("pyarrow")
    last = {"num_beams": 3, "max_length": 5}
    own: list[Any] = [{"num_beams": 1}, {"max_new_tokens": 3}, None, {"num_beams": 99}, last]
    types = {
        "struct": arrow.struct([(name, arrow.int64()) for name in ("num_beams", "max_new_tokens", "max_length")]),
        "map": arrow.map_(arrow.string(), arrow.int64()),
        "json": arrow.string(),
    }
    forms: dict[str, Any] = {"struct": dict, "map": lambda row: list(row.items()), "json": json.dumps}
    values = [row and forms[kind](row) for row in own]
    texts = [*TEXTS, TEXTS[0]]
    table = arrow.table({"text": texts, "how": arrow.array(values, types[kind])})
    generate = Generate(BUNDLE, settings_column="how", threads=1, max_rows=6, num_beams=2, max_new_tokens=6)
    found = generate(table)
    assert found.column_names[:3] == ["text", "how", "generated_text"]
    errors = found.column("generated_error").to_pylist()
    assert [error is None for error in errors] == [True, True, True, False, True]
    assert errors[3].startswith("num_beams=99 is more than the 6 rows that run together")
    for index in (0, 1, 2, 4):
        given: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 6, **(own[index] or {})}
        if "max_length" in given:
            del given["max_new_tokens"]
        assert found.column("generated_text")[index].as_py() == runner.generate_text([texts[index]], **given)[0]


def test_settings_of_rows_that_cannot_be_read(runner: Runner) -> None:
    arrow = pytest.importorskip("pyarrow")
    generate = Generate(BUNDLE, settings_column="how", threads=1, num_beams=1, max_new_tokens=3)
    how = [
        *('{"num_beams": 2, "num_beams": 3}', "[1]", "no object", '{"beams": 3}'),
        '{"return_token_scores": true, "do_sample": true, "seed": 1}',
        *('{"num_beams": 2, "num_return_sequences": 2}', '{"output_scores": true}', ""),
    ]
    with pytest.warns(NoEffectWarning, match="settings of rows: output_scores"):
        found = generate(arrow.table({"text": ["a town"] * len(how), "how": how}))
    errors = found.column("generated_error").to_pylist()
    assert errors[0] == "the field 'num_beams' stands twice; expected it once"
    assert errors[1] == "how is '[1]', expected an object of settings such as {\"num_beams\": 4}"
    assert "expected an object of settings" in errors[2] and "beams" in errors[3]
    assert errors[4] == "return_token_scores of a row needs a column of all rows; pass return_token_scores to Generate"
    assert errors[5] is errors[6] is None and "expected an object of settings" in errors[7]
    assert [len(row or []) for row in found.column("generated_texts").to_pylist()] == [0, 0, 0, 0, 0, 2, 1, 0]
    plain = generate(arrow.table({"text": ["a town"], "how": arrow.array([None], arrow.string())}))
    assert plain.schema == found.schema, "the columns do not depend on the rows"
    with pytest.raises(InputError, match="has no column 'how', its columns are text"):
        generate(arrow.table({"text": ["a town"]}))
    with pytest.raises(InputError, match="column and settings_column are both 'text'"):
        Generate(BUNDLE, settings_column="text")
    with pytest.raises(InputError, match="max_rows=0 is not a number of rows"):
        Generate(BUNDLE, max_rows=0)


def test_values_that_json_has_no_type_for(runner: Runner) -> None:
    """A date is no text, and ends no other row."""
    results = rows_of(runner, [TEXTS[0], datetime.date(2026, 1, 1), b"bytes"])
    assert [result.error for result in results] == [
        None,
        *["text is dict, expected a text or a list of messages; pass one of them"] * 2,
    ]


def test_columns_of_token_scores(runner: Runner) -> None:
    """The same columns where no row could be run. This bundle scores what it draws among candidates."""
    arrow = pytest.importorskip("pyarrow")
    settings: dict[str, Any] = {"do_sample": True, "seed": 1, "max_new_tokens": 6}
    settings |= {"return_token_scores": True, "return_alternatives": 2}
    generate = Generate(BUNDLE, "body", threads=1, **settings)
    table, failed = (generate(arrow.table({"body": arrow.array(rows, arrow.string())})) for rows in (TEXTS, [None]))
    assert table.schema == failed.schema
    for row, output in zip(table.to_pylist(), runner.generate_outputs(TEXTS, **settings), strict=True):
        assert output.token_scores is not None and output.alternatives is not None
        assert row["generated_token_scores"] == output.token_scores[0]
        found = [
            place and [(pair["token"], pair["score"]) for pair in place] for place in row["generated_alternatives"]
        ]
        assert found == output.alternatives[0]


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The actor that counts starts, called at once in place of through Ray."""
    starts = StartCounter()
    ray = SimpleNamespace(get=lambda value: value)
    real = importlib.import_module
    monkeypatch.setattr(worker, "optional_library", lambda name: ray if name == "ray" else real(name))
    return SimpleNamespace(start=SimpleNamespace(remote=starts.start))


def job(**changes: Any) -> Job:
    made = Job(
        bundle=str(BUNDLE),
        digest=bundle_digest(BUNDLE),
        version=tightbeam.__version__,
        rows=SETTINGS,
        fields=FieldNames("text", "id"),
        rows_each=3,
        output=None,
        json_lines=True,
        engine="onnxruntime",
        device="cpu",
        threads=1,
        run="a",
    )
    return replace(made, **changes)


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, list[str]]]:
    """Batches of Ray Data, a partition each."""
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"id": [index], "text": text}) + "\n" for index, text in enumerate(TEXTS)))
    made = cut(find_files([str(file)], FieldNames(), ids=False, rows_each=3), 3)
    return [{"partition": [partition.to_json()]} for partition in made]


def report(actor: PartitionWorker, batch: dict[str, list[str]]) -> dict[str, Any]:
    (text,) = actor(batch)["report"]
    found: dict[str, Any] = json.loads(text)
    return found


def test_results_are_returned_or_written_once(counter: Any, rows: list[dict[str, list[str]]], tmp_path: Path) -> None:
    returned = report(PartitionWorker(job(), counter), rows[1])
    assert (returned["index"], returned["rows"], returned["failed"], returned["failure"]) == (1, 1, 0, None)
    (record,) = map(json.loads, returned["lines"])
    assert (record["key"], record["file"], record["line"]) == ([3], "a.jsonl", 4)
    actor = PartitionWorker(job(output=str(tmp_path / "out")), counter)
    assert report(actor, rows[1])["lines"] == []
    target = tmp_path / "out" / "a.jsonl-00001.jsonl"
    assert json.loads(target.read_text()) == record
    before = target.stat().st_mtime_ns
    assert report(actor, rows[1])["tokens"] == 0
    assert target.stat().st_mtime_ns == before


@pytest.mark.parametrize(("decoder_only", "line"), [(True, r"a\nb\\c"), (False, "a b\\c")])
def test_results_of_several_lines(
    counter: Any, rows: list[dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch, decoder_only: bool, line: str
) -> None:
    monkeypatch.setattr(Texts, "decode", lambda *_: "a\nb\\c")
    lines = PartitionWorker._lines

    def of_kind(worker: PartitionWorker, *arguments: Any) -> list[str]:
        with monkeypatch.context() as patched:
            patched.setattr(Model, "decoder_only", decoder_only)
            return lines(worker, *arguments)

    monkeypatch.setattr(PartitionWorker, "_lines", of_kind)
    assert set(report(PartitionWorker(job(json_lines=False), counter), rows[0])["lines"]) == {line}


def test_settings_of_a_row(counter: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": 1, "text": "two boats", "num_return_sequences": 2}\n{"text": "hills", "color": 7}\n')
    (part,) = cut(find_files([str(file)], FieldNames(), ids=False, rows_each=9), 9)
    actor = PartitionWorker(job(fields=FieldNames("text", "id", settings=True)), counter)
    first, second = map(json.loads, report(actor, {"partition": [part.to_json()]})["lines"])
    assert first["key"] == 1 and len(first["sequences"]) == 2
    assert "color" in second["error"]


def test_a_partition_is_begun_a_few_times_only(counter: Any, rows: list[dict[str, list[str]]]) -> None:
    actor = PartitionWorker(job(), counter)
    for _ in range(MOST_STARTS):
        assert report(actor, rows[0])["rows"] == 3
    assert "its process ended 4 times" in report(actor, rows[0])["failure"]
    assert report(actor, rows[1])["failure"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "0.0.7"}, "0.0.7 started the run; install one version"),
        ({"digest": "other"}, "differs from the bundle that the run was started with"),
        ({"bundle": "/nowhere"}, "/nowhere/bundle.json cannot be read (no such file or directory)"),
        ({"engine": "mxnet"}, "engine='mxnet' is not known"),
    ],
)
def test_a_machine_that_cannot_do_the_work(
    counter: Any, rows: list[dict[str, list[str]]], changes: dict[str, Any], message: str
) -> None:
    found = report(PartitionWorker(job(**changes), counter), rows[0])
    assert found["fatal"] and found["failure"].startswith("machine ") and message in found["failure"]


def test_a_machine_whose_weights_were_changed(counter: Any, rows: list[dict[str, list[str]]], tmp_path: Path) -> None:
    """It ends the run, in place of an error for each row."""
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    with (bundle / "weights.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last[0] ^ 1]))
    found = report(PartitionWorker(job(bundle=str(bundle)), counter), rows[0])
    assert found["fatal"] and "weights.safetensors was changed since the export" in found["failure"]


def test_files_that_another_machine_lacks(counter: Any, rows: list[dict[str, list[str]]], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").unlink()
    found = report(PartitionWorker(job(), counter), rows[0])
    assert not found["fatal"] and "No such file" in found["failure"] and "a.jsonl" in found["failure"]
