"""Fixtures that all tests share."""

from __future__ import annotations

import pytest

from checkpoints import CheckpointCache


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCache:
    """`checkpoints(family, seed=0, tokenizer=False, **config)` -> folder, shared; `checkpoints.copy(folder, ...)`."""
    return CheckpointCache(tmp_path_factory.mktemp("checkpoints"))
