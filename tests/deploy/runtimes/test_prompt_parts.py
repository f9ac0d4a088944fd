"""A prompt that the CPU runtime encodes in parts: the tokens of the whole, at every border, beside other prompts."""

from __future__ import annotations

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Runner
from tightbeam.deploy.runtimes import onnxruntime_cpu

LENGTHS = (29, 8, 7, 1, 2)


@pytest.mark.parametrize(("family", "precision"), [("llama", "fp32"), ("llama", "int8"), ("gemma2", "fp32")])
def test_tokens_are_those_of_the_whole(
    bundles: BundleCache, family: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner.load(bundles("dedup", family, precision=precision), threads=1)
    assert runner.manifest.prompt is not None
    generator = np.random.default_rng(0)
    prompts = [generator.integers(3, 90, length) for length in LENGTHS]
    whole = [runner.generate([prompt], num_beams=2, max_new_tokens=9).sequences for prompt in prompts]
    monkeypatch.setattr(onnxruntime_cpu, "ENCODED_TOGETHER", 7)
    parts = [runner.generate([prompt], num_beams=2, max_new_tokens=9).sequences for prompt in prompts]
    together = runner.generate(prompts, num_beams=2, max_new_tokens=9).sequences
    for expected, alone, beside in zip(whole, parts, together, strict=True):
        np.testing.assert_array_equal(alone, expected)
        np.testing.assert_array_equal(beside[beside != runner.manifest.generation["pad_token_id"]], expected[0])
