"""The time of a bundle's creation."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from tightbeam.export.errors import ExportError

__all__ = ["creation_time"]

TIME = "SOURCE_DATE_EPOCH"
"""Environment variable with the time to write, in seconds since 1970, for builds that are equal byte for byte."""


def creation_time() -> str:
    """The present time in UTC, or the time in ``SOURCE_DATE_EPOCH``. Raises ExportError if that is not a time."""
    seconds = os.environ.get(TIME)
    try:
        now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        raise ExportError(f"{TIME}={seconds!r} is not a time; expected seconds since 1970, or unset it") from None
    return f"{now:%Y-%m-%dT%H:%M:%SZ}"
