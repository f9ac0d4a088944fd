"""The error of everything that concerns TensorRT."""

from __future__ import annotations

__all__ = ["TensorRTError"]


class TensorRTError(RuntimeError):
    """TensorRT, CUDA or a plugin failed: one line with what was wrong, what was expected, and the fix."""
