"""The error of the comparison."""

from __future__ import annotations

__all__ = ["PeerError"]


class PeerError(Exception):
    """A peer that is missing, that fails, or whose tokens are wrong."""
