"""Paths and names that the processes of `generate.py` share."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CHECKED_IN", "EQUAL", "VARIANTS", "bundle_folder", "checkpoint_folder"]

VARIANTS = ("dedup", "el", "slim", "baseline")
"""The first are measured first, should time be short."""
CHECKED_IN = "fp32"
EQUAL = "equal"
"""Beginning of the verdict on equal tokens."""


def checkpoint_folder(work: Path) -> Path:
    """Folder of the checkpoint that is timed."""
    return work / "bart-large"


def bundle_folder(work: Path, variant: str, precision: str) -> Path:
    """Folder of a bundle of that checkpoint."""
    return work / f"bart-large-{variant}-{precision}"
