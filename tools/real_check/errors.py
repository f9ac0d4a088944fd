"""The error of the check: one line."""

from __future__ import annotations

__all__ = ["CheckError"]


class CheckError(ValueError):
    """Inputs or options that cannot be used; the message says what was wrong, what was expected, and the fix."""
