"""The origin that a bundle records: source, revision, time and versions."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnxruntime
import pytest

from support.checkpoints.families import CheckpointCache
from tightbeam.export import ExportError
from tightbeam.export.checkpoint.files import read_files
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.writing.provenance import PACKAGES, provenance_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def checkpoint(checkpoints: CheckpointCache) -> Checkpoint:
    return load_checkpoint(checkpoints("bart"))


def test_time_and_versions(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    made = provenance_of(checkpoint)
    created = datetime.strptime(made.created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert timedelta(0) <= datetime.now(UTC) - created < timedelta(minutes=5)
    assert made.versions == {package: version(package) for package in PACKAGES}
    assert set(made.versions) == {"tightbeam", "torch", "transformers", "onnx", "onnxruntime"}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert provenance_of(checkpoint).created == "2023-11-14T22:13:20Z"
    for wrong in ("soon", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(ExportError, match="is not a time; expected seconds since 1970"):
            provenance_of(checkpoint)


def test_a_folder_is_named_without_its_path(checkpoint: Checkpoint) -> None:
    made = provenance_of(checkpoint)
    assert (made.source, made.revision) == (checkpoint.path.name, None)
    assert "/" not in made.model_dump_json()
    assert read_files("demo").source == "demo"


def test_a_snapshot_of_the_hub_has_its_id_and_commit(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is laid out as the hub's client does; an alias and a path into the cache lead there."""
    folder = tmp_path / "models--facebook--bart-large-cnn" / "snapshots" / COMMIT
    shutil.copytree(checkpoints("bart"), folder)
    found = read_files(folder)
    assert (found.source, found.revision, found.name) == ("facebook/bart-large-cnn", COMMIT, "bart-large-cnn")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    for name in ("bart-large-cnn", "facebook/bart-large-cnn"):
        found = read_files(name)
        assert (found.source, found.revision) == ("facebook/bart-large-cnn", COMMIT)
        assert found.name == "bart-large-cnn"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bart"


def test_a_module_of_another_distribution_has_its_own_version(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> str:
        if package == "onnxruntime":  # onnxruntime-gpu brings the module
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr("tightbeam.export.writing.provenance.version", missing)
    assert provenance_of(checkpoint).versions["onnxruntime"] == onnxruntime.__version__
