"""Comparison of the CUDA kernels' outputs with the definitions, for the tests on the host shim and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from support.operators.cases import MODULES, check_candidates
from support.operators.cuda_host import FLOATS
from support.tolerance import assert_close
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.beam_attention import cases as beam_attention
from tightbeam.plugins.ops.latent_attention import cases as latent_attention
from tightbeam.plugins.ops.source_attention import cases as source_attention


def rounded(case: Case, dtype: str) -> Case:
    """The same case with numbers that ``dtype`` has."""
    inputs = {
        name: array.astype(FLOATS[dtype]).astype(np.float32) if name in case.floats else array
        for name, array in case.inputs.items()
    }
    return replace(case, inputs=inputs)


@contextmanager
def rounding(dtype: str) -> Iterator[None]:
    """Round in the definitions where tensor-core kernels have to round: weights, and rotated keys."""
    if dtype == "float32":
        yield
        return

    def nearest(array: Array) -> Array:
        return array.astype(FLOATS[dtype]).astype(array.dtype)

    softmax, rotate = beam_attention.softmax_with_lse, beam_attention.rotate

    def rounded_softmax(scores: Array) -> tuple[Array, Array]:
        weights, lse = softmax(scores)
        return nearest(weights), lse

    with pytest.MonkeyPatch.context() as patch:
        for module in (source_attention, latent_attention, beam_attention):
            patch.setattr(module, "softmax_with_lse", rounded_softmax)
        for module in (latent_attention, beam_attention):
            patch.setattr(module, "rotate", lambda *arguments: nearest(rotate(*arguments)))
        yield


def check_result(name: str, case: Case, dtype: str, found: Mapping[str, Array], luck: float = 1) -> None:
    """Compare outputs with the operator's definition.

    Parameters
    ----------
    case: numbers that ``dtype`` has.
    found: every output; its shape may be another.
    luck: times further than allowed, for a random case of few numbers (``tolerance.LUCK``).

    Raises
    ------
    AssertionError: an output is further from the definition than a naive version may be.
    """
    module = MODULES[name]
    if name == "NGramBlock":
        np.testing.assert_array_equal(found["blocked"].astype(np.float32), module.exact(case)["blocked"])
        return
    if name == "BeamTopK":
        check_candidates(case, dict(found), module.exact(case), module.exact(case, np.float32), luck)
        return
    exact = module.exact(case)
    with rounding(dtype):
        naive = module.exact(case, np.float32)
    assert found.keys() == exact.keys()
    for tensor, expected in exact.items():
        result = found[tensor].reshape(expected.shape)
        if tensor.endswith("cache_out"):
            np.testing.assert_array_equal(result.astype(np.float32), naive[tensor], err_msg=tensor)
            continue
        in_precision = naive[tensor].astype(result.dtype).astype(np.float32)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(result.astype(np.float32)[~finite], expected[~finite], err_msg=tensor)
        assert_close(result.astype(np.float32)[finite], expected[finite], in_precision[finite], luck)
