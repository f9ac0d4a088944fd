"""Decoder-only bundles to TensorRT engines, tested like the others in test_build_engine.py.

Every variant is built of one family, and each family that is not like Llama in the last of its own; ``make slow``
builds the rest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.bundles.causal_engines import CAUSAL
from support.bundles.engines import check_builds, check_tokens_of_tensorrt_graphs
from support.slow_cases import slow_unless

LIKE_LLAMA = ("qwen2", "olmo2", "phi3", "gemma", "smollm3", "granite", "starcoder2", "qwen3", "olmo")
"""Families whose graphs have the operators of Llama's, between other norms and activations."""


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(
        CAUSAL,
        lambda family, variant: (
            (dict(CAUSAL)[family] == variant and family not in LIKE_LLAMA)
            or (family, variant) in (("gpt2", "baseline"), ("gpt2", "el"))
        ),
    ),
)
def test_every_variant_of_every_family_builds(bundles: BundleCache, family: str, variant: str, tmp_path: Path) -> None:
    check_builds(bundles(variant, family), tmp_path)


@pytest.mark.parametrize(
    ("family", "variant"),
    [("gpt2", "kcache"), ("gpt_bigcode", "el"), ("llama", "dedup"), ("llama", "baseline"), ("mistral", "baseline")],
)
def test_tokens_of_tensorrt_graphs_are_the_bundle_s(
    bundles: BundleCache, family: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_tokens_of_tensorrt_graphs(bundles, family, variant, tmp_path, monkeypatch)
