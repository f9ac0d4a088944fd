"""Errors of deploy, each with a one-line message: what was wrong, what was expected, the fix.

ValueError
  InputError                 an input that cannot be run
  GenerationError            a setting that is unknown, not supported, or impossible
  BundleError                a bundle, its files, or what runs it
    EngineFileError          a TensorRT engine file is missing, damaged, or built for something else
    RuntimeSetupError        a runtime, or a library that it needs, is missing or cannot be loaded
    DeviceError              there is no GPU, its memory is exhausted, or a CUDA call failed
    ExecutionError           a runtime failed to run a graph of the bundle
      NonFiniteError         the model's scores are NaN or infinite

UserWarning
  NoEffectWarning            a setting that is accepted and changes nothing
"""

from __future__ import annotations

__all__ = [
    "NO_NAME",
    "BundleError",
    "DeviceError",
    "EngineFileError",
    "ExecutionError",
    "GenerationError",
    "InputError",
    "NoEffectWarning",
    "NonFiniteError",
    "RuntimeSetupError",
    "first_line",
    "is_panic",
    "open_fault",
]

NO_NAME = "no file is named"
"""Fault of an empty name of a file."""


class InputError(ValueError):
    """An input that cannot be run; the message says what was wrong, what was expected, and the fix."""


class GenerationError(ValueError):
    """A setting that is unknown, not supported, or impossible; one line with the field, its source and the fix."""


class NoEffectWarning(UserWarning):
    """Warning of a setting of the caller that is accepted and changes nothing."""


class BundleError(ValueError):
    """Bundle that cannot be read, written or run. The message names the file, what was expected, and the fix."""


class EngineFileError(BundleError):
    """TensorRT engine that cannot be read or does not fit. The message ends with the command that builds one."""


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


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or the name of its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def open_fault(name: str, error: Exception) -> str:
    """Name what keeps a file from being opened: there is none, it is a folder, or what the system says."""
    if isinstance(error, FileNotFoundError):
        return f"there is no file {name}"
    if isinstance(error, IsADirectoryError):
        return f"{name} is a folder"
    return f"{name} cannot be opened ({getattr(error, 'strerror', None) or error})"


def is_panic(error: BaseException) -> bool:
    """True for a panic inside a Rust library, a BaseException; pyo3 has no module to import its class from."""
    return type(error).__name__ == "PanicException"
