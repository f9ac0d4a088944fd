"""Paths and names that the processes of `generate.py` share."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CHECKED_IN", "EQUAL", "TIMED", "bundle_folder", "checkpoint_folder"]

TIMED = "bart-large"
"""The model that is timed; the others are families that are checked at tiny sizes."""
CHECKED_IN = "fp32"
EQUAL = "equal"
"""Beginning of the verdict on equal tokens."""


def checkpoint_folder(work: Path, model: str) -> Path:
    return work / model


def bundle_folder(work: Path, model: str, variant: str, precision: str) -> Path:
    return work / f"{model}-{variant}-{precision}"
