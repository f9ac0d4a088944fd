"""Base of decodings on a GPU, which have no outputs of alignment heads."""

from __future__ import annotations

__all__ = ["WithoutAlignment"]


class WithoutAlignment:
    """The part of `Decoding` that a runtime with an ``alignment_obstacle`` lacks."""

    def fetch_alignment(self) -> None:
        """Do nothing: the runtime has no such output."""

    @property
    def alignment_queries(self) -> None:
        return None

    @property
    def alignment_keys(self) -> None:
        return None
