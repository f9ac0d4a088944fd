"""Base of decodings on a GPU, whose steps give nothing of alignment heads."""

from __future__ import annotations

__all__ = ["WithoutAlignment"]


class WithoutAlignment:
    """The part of `Decoding` that a runtime with an ``alignment_obstacle`` lacks."""

    def fetch_alignment(self) -> None:
        """Nothing: the runtime gives none."""

    @property
    def alignment_queries(self) -> None:
        return None

    @property
    def alignment_keys(self) -> None:
        return None
