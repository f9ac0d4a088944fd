"""What an export needs of its machine is checked before anything is slow."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.checkpoints.families import CheckpointCache
from tightbeam.export import ExportError, export_model
from tightbeam.export.machine_checks import disk_bytes
from tightbeam.export.options import ExportOptions
from tightbeam.plugins.library import ENVIRONMENT


def refused(message: str, *arguments: Any, **options: Any) -> None:
    steps: list[str] = []
    with pytest.raises(ExportError, match=message):
        export_model(*arguments, on_step=steps.append, **options)
    assert not steps


def test_a_full_disk(checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=9000))
    message = rf"the disk of {tmp_path} has 9,000 bytes free, and the export needs [\d,]+, .*; make room"
    refused(message, checkpoints("bart"), tmp_path / "deep" / "out")


@pytest.mark.parametrize(
    ("options", "by_weight"),
    [
        ({}, 4),
        ({"weight_threshold": 0.1}, 4),
        ({"precision": "fp16"}, 2 + 2 * 4),
        ({"precision": "fp16", "check": False}, 2),
        ({"precision": "int8"}, 1 + 4 + 1),
        ({"precision": "int8", "check": False}, 4),
        ({"cache_precision": "int8"}, 3 * 4),
    ],
)
def test_bytes_on_the_disk(options: dict[str, Any], by_weight: int) -> None:
    assert disk_bytes(1000, ExportOptions(**options)) == 1000 * by_weight


@pytest.mark.parametrize(
    ("family", "module", "options"),
    [
        ("whisper", "av", {}),
        ("pix2struct", "PIL", {}),
        ("pix2struct", "PIL", {"precision": "int8", "check": False}),
    ],
)
def test_a_missing_package(
    checkpoints: CheckpointCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    module: str,
    options: dict[str, Any],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    refused("needs the package .*; pip install 'tightbeam", checkpoints(family), tmp_path / "out", **options)


def test_a_missing_native_library(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "no.so"))
    refused("no.so", checkpoints("bart"), tmp_path / "out")
