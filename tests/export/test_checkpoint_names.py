"""Names of checkpoints: folders, aliases and hub ids, and what is none of these."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from support.checkpoints.edits import refusal
from support.checkpoints.families import CheckpointCache
from tightbeam.export.checkpoint import resolve as resolving
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.checkpoint.resolve import ALIASES, resolve
from tightbeam.export.families.table import FAMILIES


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a hub that refuses connections."""
    download = huggingface_hub.snapshot_download

    def unreachable(hub_id: str, **options: Any) -> str:
        return str(download(hub_id, endpoint="http://127.0.0.1:9", cache_dir=tmp_path / "cache", **options))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)


def test_demo_is_the_bundled_folder(monkeypatch: pytest.MonkeyPatch, checkpoints: CheckpointCache) -> None:
    monkeypatch.setattr(resolving, "DEMO_FOLDER", checkpoints("bart"))
    assert resolve("demo") == checkpoints("bart")
    assert load_checkpoint("demo").name == "demo"


def test_an_alias_is_fetched_from_the_hub(monkeypatch: pytest.MonkeyPatch, checkpoints: CheckpointCache) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(hub_id: str, *, allow_patterns: list[str], **_options: Any) -> str:
        asked.append((hub_id, allow_patterns))
        return str(checkpoints("bart"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_checkpoint("bart-large-cnn").name == "bart-large-cnn"
    assert load_checkpoint("someone/my-model").name == "my-model"
    assert [hub_id for hub_id, _ in asked] == ["facebook/bart-large-cnn", "someone/my-model"]
    assert not any("bin" in pattern or pattern == "*" for _, patterns in asked for pattern in patterns)


def test_aliases_are_unique_and_end_like_their_hub_id() -> None:
    assert len(ALIASES) == sum(len(family.aliases) for family in FAMILIES)
    assert all(hub_id.rpartition("/")[2] == alias for alias, hub_id in ALIASES.items())
    assert "demo" not in ALIASES
    wanted = {
        "bart-large-cnn",
        "distilbart-cnn-12-6",
        "pegasus-xsum",
        "opus-mt-en-de",
        "mbart-large-50-many-to-many-mmt",
        "flan-t5-base",
    }
    assert wanted <= ALIASES.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bart-large-cnm", "bart-large-cnn"),
        ("pegasus", "pegasus-"),
        ("zzzzzz", "aliases: demo"),
        ("./nowhere", "no such folder"),
        ("a/b/c", "no such folder"),
        ("/nowhere/at/all", "no such folder"),
        ("", "no such folder"),
    ],
)
def test_unknown_names(name: str, expected: str) -> None:
    assert expected in refusal(name)


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("name", ["facebook/bart-large-cnm", "bart-large-cnn"])
def test_an_unreachable_hub_fails_at_once(name: str) -> None:
    start = time.perf_counter()
    message = refusal(name)
    assert time.perf_counter() - start < 10
    assert "could not be fetched" in message
    assert "bart-large-cnn" in message


def test_file_or_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    assert "expected a checkpoint folder" in refusal(tmp_path / "a.txt")
