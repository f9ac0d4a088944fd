"""Both runtimes of a GPU, over plain memory: results of every variant and of other families."""

from __future__ import annotations

import itertools

import pytest

from support.bundles.cache import BundleCache
from support.runtimes.comparison import expect_same, runs_of
from support.runtimes.cuda_in_memory import expect_nothing_left
from support.runtimes.devices import DEVICES
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.graph_passes import PRESETS


@pytest.mark.parametrize(
    ("variant", "device"),
    slow_unless(
        itertools.product(PRESETS, DEVICES),
        lambda variant, device: (
            (variant, device) == ("el", "cuda") or (device == "tensorrt" and variant in ("baseline", "dedup", "hybrid"))
        ),
    ),
)
def test_every_variant(bundles: BundleCache, variant: str, device: str) -> None:
    path = bundles(variant, "bart")
    made, expected = DEVICES[device](path), Runner.load(path, threads=1)
    expect_same(made.runner, expected, runs_of(expected.manifest.sizes.source_vocabulary))
    assert bool(made.cuda.launches) == (variant != "baseline")
    cuda = made.cuda
    del made
    expect_nothing_left(cuda)


@pytest.mark.parametrize(
    ("family", "variant", "device"),
    slow_unless(
        [
            (*each, device)
            for each in (("t5", "dedup"), ("t5", "xcache"), ("prophetnet", "dedup"))
            for device in DEVICES
        ],
        lambda family, variant, device: (variant == "xcache") == (device != "tensorrt"),
    ),
)
def test_other_families(bundles: BundleCache, family: str, variant: str, device: str) -> None:
    path = bundles(variant, family)
    made, expected = DEVICES[device](path), Runner.load(path, threads=1)
    expect_same(made.runner, expected, runs_of(expected.manifest.sizes.source_vocabulary))
    assert made.cuda.launches
