"""Recordings as rows: files, lists of names, and columns of names or contents, without a cluster."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tightbeam
from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from tightbeam.deploy import InputError, Runner
from tightbeam.deploy.inputs.output import TextSegment
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.ray import Generate, worker
from tightbeam.deploy.ray.input_data import cut, find_files
from tightbeam.deploy.ray.job import StartCounter
from tightbeam.deploy.ray.partition import FieldNames
from tightbeam.deploy.ray.rows import RowSettings
from tightbeam.deploy.ray.table import with_results
from tightbeam.deploy.ray.worker import Job, PartitionWorker
from tightbeam.deploy.run_model.record import bundle_digest

soundfile = pytest.importorskip("soundfile")
SHORT = {"max_new_tokens": 6}


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)


@pytest.fixture(scope="module")
def runner(bundle: Path) -> Runner:
    return Runner.load(bundle, threads=1)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A folder of two recordings, a file of another kind, and a recording that cannot be read."""
    folder = tmp_path_factory.mktemp("talks")
    (folder / "sub").mkdir()
    for index, name in enumerate(("a.wav", "sub/b.flac")):
        soundfile.write(folder / name, chirp(0.8, high_hz=900 * (1 + index)), RATE_HZ)
    (folder / "c.ogg").write_bytes(b"no sound")
    (folder / "notes.pdf").write_bytes(b"%PDF")
    return [str(folder / name) for name in ("a.wav", "c.ogg", "sub/b.flac")]


@pytest.fixture
def actor(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an actor of the command."""
    starts, real = StartCounter(), importlib.import_module
    ray = SimpleNamespace(get=lambda value: value)
    monkeypatch.setattr(worker, "optional_library", lambda name: ray if name == "ray" else real(name))

    def make(**changes: Any) -> PartitionWorker:
        common: dict[str, Any] = {
            "bundle": str(bundle),
            "digest": bundle_digest(bundle),
            "version": tightbeam.__version__,
            "rows": RowSettings(SHORT),
            "fields": FieldNames("text", None),
            "rows_each": 9,
            "output": None,
            "json_lines": True,
            "engine": "onnxruntime",
            "device": "cpu",
            "threads": 1,
            "run": "a",
        }
        counter = SimpleNamespace(start=SimpleNamespace(remote=starts.start))
        return PartitionWorker(Job(**common | changes), counter)

    return make


def reports(actor: PartitionWorker, *sources: str | Path, **fields: Any) -> list[dict[str, Any]]:
    files = find_files([str(each) for each in sources], FieldNames(**fields), ids=False, rows_each=9, sound=True)
    found = [actor({"partition": [part.to_json()]})["report"] for part in cut(files, 9)]
    return [json.loads(text) for (text,) in found]


def test_a_folder_is_its_recordings_each_a_partition(
    actor: Any, runner: Runner, talks: list[str], tmp_path: Path
) -> None:
    folder = Path(talks[0]).parent
    first, broken, second = reports(actor(), folder)
    outputs = runner.transcribe_outputs([talks[0], talks[2]], **SHORT)
    for report, name, output in zip((first, second), ("a.wav", "sub/b.flac"), outputs, strict=True):
        (record,) = map(json.loads, report["lines"])
        assert (record["file"], record["line"], record["text"]) == (name, 1, (output.texts or [""])[0])
        assert record["language"] == output.language and report["failure"] is None
        assert record["language_probability"] == round(output.language_probability or 0, 4)
    assert broken["failed"] == 1 and "cannot be read as audio" in broken["errors"][0][1]
    (line,) = reports(actor(json_lines=False), talks[0])[0]["lines"]
    assert line == f"a.wav\t{(outputs[0].texts or [''])[0]}"
    reports(actor(output=str(tmp_path / "out")), folder)
    assert json.loads((tmp_path / "out" / "sub" / "b.flac-00000.jsonl").read_text())["file"] == "sub/b.flac"


def test_lists_name_recordings(actor: Any, runner: Runner, talks: list[str], tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join([*talks, "none.wav"]))
    (report,) = reports(actor(), tmp_path / "names.txt")
    records = [json.loads(line) for line in report["lines"]]
    assert [record.get("text") for record in records] == [
        each if isinstance(each, str) else None
        for each in (runner.transcribe(talks[:1], **SHORT)[0], None, runner.transcribe(talks[2:], **SHORT)[0], None)
    ]
    assert [record["line"] for record in records] == [1, 2, 3, 4] and report["failed"] == 2
    rows = [{"talk": talks[0], "language": "german"}, {"talk": talks[0], "language": "dutch"}, {"talk": 5}]
    (tmp_path / "names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"text": "talk", "settings": True}
    (report,) = reports(actor(fields=FieldNames(**fields)), tmp_path / "names.jsonl", **fields)
    german, dutch, five = map(json.loads, report["lines"])
    assert german["language"] == "de" and german["language_probability"] is None
    assert german["text"] == runner.transcribe(talks[:1], language="de", **SHORT)[0]
    assert "is not a language of this model" in dutch["error"] and "expected the name of a file" in five["error"]


def test_columns_of_names_and_contents(bundle: Path, runner: Runner, talks: list[str]) -> None:
    arrow = pytest.importorskip("pyarrow")
    generate = Generate(bundle, column="talk", prefix="", threads=1, settings_column="how", **SHORT)
    contents = arrow.array([Path(talks[0]).read_bytes(), b"no sound", None], arrow.binary())
    how = [None, None, None]
    table = generate(arrow.table({"talk": contents, "how": arrow.array(how, arrow.string())}))
    first, broken, empty = table.to_pylist()
    (output,) = runner.transcribe_outputs(talks[:1], **SHORT)
    assert (first["text"], first["language"], first["segments"]) == ((output.texts or [""])[0], output.language, None)
    assert first["language_probability"] == pytest.approx(output.language_probability)
    assert "cannot be read as audio" in broken["error"] and "the recording is null" in empty["error"]
    how = ['{"language": "french"}', "[]", '{"size": 5}']
    table = generate(arrow.table({"talk": talks, "how": how})).to_pylist()
    assert (table[0]["language"], table[0]["language_probability"]) == ("fr", None)
    assert table[0]["text"] == runner.transcribe(talks[:1], language="fr", **SHORT)[0]
    assert "expected an object of settings" in table[1]["error"] and "size" in table[2]["error"]


def test_segments_are_a_column() -> None:
    arrow = pytest.importorskip("pyarrow")
    segments = [TextSegment(0.5, 1.25, [7, 8], "two boats")]
    results = [InputResult(1, texts=["two boats"], segments=segments, language="en"), InputResult(2, error="empty")]
    first, second = with_results(arrow.table({"id": [1, 2]}), results, sound=True).to_pylist()
    assert first["segments"] == [{"start": 0.5, "end": 1.25, "text": "two boats", "tokens": [7, 8]}]
    assert (second["segments"], second["language"], first["language"]) == (None, None, "en")
    assert "segments" not in with_results(arrow.table({"id": [1, 2]}), results).column_names


def test_what_does_not_fit_a_speech_model_is_refused(bundle: Path, talks: list[str], tmp_path: Path) -> None:
    for settings in ({"ids": True}, {"truncate": True}):
        with pytest.raises(InputError, match="this is a speech model; leave them out"):
            Generate(bundle, threads=1, **settings)  # type: ignore[arg-type]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    with pytest.raises(InputError, match="has no sound files"):
        find_files([str(tmp_path / "texts")], FieldNames(), ids=False, rows_each=9, sound=True)
    with pytest.raises(InputError, match="is of an unknown kind"):
        find_files([talks[0]], FieldNames(), ids=False, rows_each=9)
