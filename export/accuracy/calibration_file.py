"""A calibration file: texts on whose activations the guard measures errors, in place of the comparison's texts."""

from __future__ import annotations

import os
from pathlib import Path

from tightbeam.export.errors import ExportError

__all__ = ["MAX_TEXTS", "read_calibration"]

MAX_TEXTS = 64
"""Lines beyond these are not read: the error is a mean, for which a few dozen texts suffice."""


def read_calibration(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read a calibration file.

    Parameters
    ----------
    path
        A UTF-8 file, one text a line.

    Returns
    -------
    tuple of str
        The first ``MAX_TEXTS`` lines that hold text.

    Raises
    ------
    ExportError
        The file cannot be read, or has no text.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ExportError(f"calibration file {os.fspath(path)} cannot be read: {reason}; give a text file") from error
    lines = tuple(line for line in text.splitlines() if line.strip())
    if not lines:
        raise ExportError(f"calibration file {os.fspath(path)} has no line of text; give one text a line")
    return lines[:MAX_TEXTS]
