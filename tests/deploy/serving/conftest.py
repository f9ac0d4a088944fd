"""Fixtures of the tests that write model repositories, and of those that run a worker's requests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.serving.repositories import Command, caller
from tightbeam.deploy import Runner


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


@pytest.fixture(scope="module")
def bart(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup", tokenizer=True), threads=1)


@pytest.fixture(scope="module")
def gpt2(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup", "gpt2", tokenizer=True), threads=1)


@pytest.fixture(scope="module")
def whisper(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True), threads=1)


@pytest.fixture(scope="module")
def wordless(bundles: BundleCache) -> Runner:
    """The runner of a checkpoint without a tokenizer."""
    return Runner.load(bundles("dedup"), threads=1)
