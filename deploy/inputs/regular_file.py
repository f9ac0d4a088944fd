"""Files that are none: pipes and devices, which may be waited for or read for ever."""

from __future__ import annotations

from pathlib import Path

__all__ = ["not_regular"]


def not_regular(path: str) -> str:
    """Name a pipe or a device; empty for a file, for a folder, and where nothing is. Raises OSError."""
    place = Path(path)
    regular = place.is_file() or place.is_dir() or not place.exists()
    return "" if regular else "a pipe or a device, not a file"
