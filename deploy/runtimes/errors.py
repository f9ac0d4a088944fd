"""Errors of the runtimes, each with a one-line message.

BundleError                  base of all errors of a bundle, its files and its runtimes
  EngineFileError            a TensorRT engine file is missing, damaged, or built for something else
  RuntimeSetupError          a runtime, or a library that it needs, is missing or cannot be loaded
  DeviceError                there is no GPU, its memory is exhausted, or a CUDA call failed
  ExecutionError             a runtime failed to run a graph of the bundle
    NonFiniteError           the model's scores are NaN or infinite
"""

from __future__ import annotations

from tightbeam.deploy.bundle.reader import BundleError

__all__ = ["DeviceError", "ExecutionError", "NonFiniteError", "RuntimeSetupError"]


class RuntimeSetupError(BundleError):
    """Missing or unloadable runtime, or library that it needs."""


class DeviceError(BundleError):
    """Failure of the GPU: there is none, its memory is exhausted, or a CUDA call failed."""


class ExecutionError(BundleError):
    """Failure of a runtime while it runs a graph of the bundle."""


class NonFiniteError(ExecutionError):
    """Scores of the model that are NaN or infinite."""

    def __init__(self, scores: str) -> None:
        super().__init__(
            f"{scores}: the model's weights hold NaN or infinity, or its activations overflow; export a "
            "checkpoint with finite weights, or at a higher precision"
        )
