"""The exception of TensorRT, CUDA and the plugins."""

from __future__ import annotations

__all__ = ["TensorRTError"]


class TensorRTError(RuntimeError):
    """Failure of TensorRT, CUDA or a plugin, in one line: what was wrong, what was expected, and the fix."""
