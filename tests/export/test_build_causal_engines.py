"""Decoder-only bundles to TensorRT engines, tested like the others in test_build_engine.py.

``make test`` builds one family for each kind of attention and cache; ``make slow`` builds the rest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.bundles.causal_engines import CAUSAL
from support.bundles.engines import check_builds, check_tokens_of_tensorrt_graphs
from support.slow_cases import slow_unless

QUICK = (("gpt2", "el"), ("llama", "dedup"), ("gemma2", "kcache"))


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(CAUSAL, lambda *case: case in QUICK),
)
def test_every_variant_of_every_family_builds(bundles: BundleCache, family: str, variant: str, tmp_path: Path) -> None:
    check_builds(bundles(variant, family), tmp_path)


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(
        [("gpt2", "kcache"), ("gpt_bigcode", "el"), ("llama", "dedup"), ("llama", "baseline"), ("mistral", "baseline")],
        lambda *case: case != ("llama", "dedup"),
    ),
)
def test_tokens_of_tensorrt_graphs_are_the_bundle_s(
    bundles: BundleCache, family: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_tokens_of_tensorrt_graphs(bundles, family, variant, tmp_path, monkeypatch)
