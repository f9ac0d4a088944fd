"""`make cuda-check`: the kernels of every compute capability are within their budgets. No GPU is needed."""

from __future__ import annotations

import pytest

from tools.cuda_model import check, compiled
from tools.cuda_model.gpus import CHECKED, Device

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda.bindings is not here", exc_type=ImportError)


@pytest.mark.slow
@pytest.mark.parametrize("device", CHECKED, ids=lambda device: f"sm_{device.capability}")
def test_kernels_are_within_their_budgets(device: Device) -> None:
    try:
        compiled._nvdisasm()
    except SystemExit as error:
        pytest.skip(str(error))
    assert check.check([device]) == []
