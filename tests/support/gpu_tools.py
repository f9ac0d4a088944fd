"""Where the scripts of the GPU check are, and how their processes find one another's modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["GPU_TOOLS", "PATHS", "environment", "make_importable"]

TOOLS = Path(__file__).resolve().parents[2] / "tools"
GPU_TOOLS = TOOLS / "gpu"
PATHS = (str(GPU_TOOLS), str(TOOLS))


def environment() -> dict[str, str]:
    """For a process of one script, as `tools/gpu_check.py` starts it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])))}


def make_importable(patch: pytest.MonkeyPatch) -> None:
    for path in reversed(PATHS):
        patch.syspath_prepend(path)
