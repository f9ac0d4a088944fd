"""`make cuda-check`: the kernels of every compute capability are within their budgets. No GPU is needed."""

from __future__ import annotations

import json

import pytest

from tightbeam.export.auto.gpus import RATES
from tools.cuda_model import check, compiled
from tools.cuda_model.gpus import CHECKED, GPUS, Device
from tools.cuda_model.rates import BATCHES, calls_of_gpu

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda.bindings is not here", exc_type=ImportError)


@pytest.mark.slow
@pytest.mark.parametrize("device", CHECKED, ids=lambda device: f"sm_{device.capability}")
def test_kernels_are_within_their_budgets(device: Device) -> None:
    need_nvdisasm()
    assert check.check([device]) == []


@pytest.mark.slow
def test_times_of_gpus_are_those_of_the_present_kernels() -> None:
    """Within a tenth; else: python -m tools.cuda_model.rates."""
    need_nvdisasm()
    place = BATCHES.index(128)
    known = json.loads(RATES.read_text("utf-8"))
    assert list(known) == list(GPUS)
    for operator, calls in calls_of_gpu(GPUS["H200"], [128]).items():
        assert known["H200"]["kernels"][operator][place] == pytest.approx(calls[0], rel=0.1), operator


def need_nvdisasm() -> None:
    try:
        compiled._nvdisasm()
    except SystemExit as error:
        pytest.skip(str(error))
