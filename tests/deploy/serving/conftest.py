"""Fixtures of the tests that write model repositories."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.bundles import BundleCache
from support.repositories import Command, caller


@pytest.fixture
def triton_repo(capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(capsys)


@pytest.fixture(scope="module")
def text(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose folder gives the model its name."""
    return Path(shutil.copytree(bundles("dedup", tokenizer=True), tmp_path_factory.mktemp("text") / "bart-dedup"))


@pytest.fixture(scope="module")
def ids_only(bundles: BundleCache) -> Path:
    return bundles("dedup")
