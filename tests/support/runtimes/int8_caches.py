"""Bundles with caches in int8 beside the same in float32."""

from __future__ import annotations

from support.bundles.cache import BundleCache
from tightbeam.deploy import Bundle
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export.accuracy.compare import compare_runtimes, sources_of

TIMES_FP16 = 20
"""Bound on the error in that of fp16: 1 to 8 were measured of a source cache, by family and variant."""


def bundles_that_are_close(
    bundles: BundleCache, family: str, variant: str, precision: str, **caches: str
) -> tuple[Bundle, Bundle]:
    """The bundle without and the one with ``caches`` in int8, whose error is at most ``TIMES_FP16`` that of fp16."""
    exact = Bundle.load(bundles(variant, family, precision=precision))
    low = Bundle.load(bundles(variant, family, precision=precision, **caches))
    sources = sources_of(exact)
    runtimes = OnnxRuntimeCpu(exact, 1), OnnxRuntimeCpu(low, 1)
    half = OnnxRuntimeCpu(Bundle.load(bundles(variant, family, precision="fp16")), 1)
    error = compare_runtimes(exact, *runtimes, sources).error
    assert 0 < error < TIMES_FP16 * compare_runtimes(exact, runtimes[0], half, sources).error
    return exact, low
