"""What goes wrong with TensorRT."""

from __future__ import annotations

__all__ = ["TensorRTError"]


class TensorRTError(RuntimeError):
    """TensorRT, CUDA or a plugin cannot do what was asked; the message says what, what was expected, and the fix."""
