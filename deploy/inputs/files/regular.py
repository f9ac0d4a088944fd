"""Check for pipes and devices in place of files: reading them may wait or go on for ever."""

from __future__ import annotations

from pathlib import Path

__all__ = ["not_regular"]


def not_regular(path: str) -> str:
    """Name the kind of a pipe or a device; empty for a file, a folder, or a missing file. Raises OSError."""
    place = Path(path)
    regular = place.is_file() or place.is_dir() or not place.exists()
    return "" if regular else "a pipe or a device, not a file"
