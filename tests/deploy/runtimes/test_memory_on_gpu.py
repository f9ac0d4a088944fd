"""A batch that fills the memory of a real GPU, in a file of its own: `gpu_check.py` runs the tests of one file at once.
`pytest -m gpu`.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.operators.cuda_device import cuda, provider_library
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import DeviceError, ExecutionError

LEFT = 2**32
"""Bytes that are left to the batch, since it would take minutes to fill a large GPU."""


@pytest.mark.gpu
def test_a_batch_too_large_for_the_gpu_is_an_error(bundles: BundleCache) -> None:
    provider_library()
    runner = Runner.load(bundles("baseline", "bart", max_position_embeddings=2048), device="cuda")
    ids = np.full((10_000, 40), 7)
    free, _ = cuda("cudaMemGetInfo")
    taken = cuda("cudaMalloc", free - LEFT)
    try:
        with pytest.raises((DeviceError, ExecutionError), match="run fewer rows together"):
            runner.generate(ids, num_beams=5, max_new_tokens=2000)
        few = runner.generate(ids[:2], num_beams=2, max_new_tokens=3)
    finally:
        cuda("cudaFree", taken)
    assert len(few.sequences) == 2
