"""Fixtures that all tests share.

What takes seconds to import is imported inside them, since the process that starts the others runs no test.
"""

from __future__ import annotations

import functools
import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import tightbeam  # noqa: F401  # before onnxruntime, which it keeps from reporting home
from support.stand_ins import is_represented

if TYPE_CHECKING:
    from support.bundles.cache import BundleCache
    from support.checkpoints.families import CheckpointCache

TESTS = Path(__file__).parent
FIRST = ("end_to_end", "export", "tools")
"""Folders of the longest files, which a parallel run has to begin with."""


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_represented(item):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in FIRST)


@pytest.fixture(scope="session", autouse=True)
def quick_torch() -> None:
    """Tiny models gain nothing from threads, and a trace spends a tenth of its time on collecting garbage."""
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def heeded_interrupts() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and a test's commands would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_registry() -> Iterator[None]:
    """torch's exporter reads its 1,000 conversions once a process, not once a graph, which is a tenth of a trace."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)
    with patch.object(ONNXRegistry, "from_torchlib", staticmethod(read)):
        yield


@pytest.fixture(scope="session", autouse=True)
def one_trace() -> Iterator[None]:
    """Exports of one checkpoint share its trace."""
    from support.bundles.traces import traced
    from tightbeam.export import pipeline as exporter

    with patch.object(exporter, "trace", traced):
        yield


@pytest.fixture(scope="session", autouse=True)
def one_reference() -> Iterator[None]:
    """Exports of one checkpoint, and of later runs of the tests, share what torch generates for them."""
    from support.references.kept import kept_reference
    from tightbeam.export import pipeline as exporter

    with patch.object(exporter, "make_reference", kept_reference):
        yield


@pytest.fixture(scope="session", autouse=True)
def one_process() -> Iterator[None]:
    """Exports run what they have made in this process, but for the tests with the fixture ``own_processes``."""
    from support.one_process import commands_of_exports

    with commands_of_exports():
        yield


@pytest.fixture
def own_processes() -> Iterator[None]:
    """Exports run what they have made in processes of their own, without torch, as a user's do."""
    from support.one_process import commands_of_exports
    from tightbeam.export.accuracy.counted_process import run_counted

    with commands_of_exports(run_counted):
        yield


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCache:
    """`checkpoints(family, seed=0, tokenizer=False, **config)` -> folder, shared; `checkpoints.copy(folder, ...)`."""
    from support.checkpoints.families import CheckpointCache

    return CheckpointCache(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def bundles(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> BundleCache:
    """`bundles("el", family, **checkpoint arguments)` -> folder, shared: one trace a checkpoint serves all variants."""
    from support.bundles.cache import BundleCache

    return BundleCache(checkpoints, tmp_path_factory.mktemp("bundles"))
