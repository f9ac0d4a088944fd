"""Base of decodings on a GPU, which run steps alone: no outputs of alignment heads, and no prefill."""

from __future__ import annotations

from tightbeam.deploy.arrays import Ints

__all__ = ["StepsAlone"]


class StepsAlone:
    """The parts of `Decoding` that a CPU alone has."""

    def fetch_alignment(self) -> None:
        """Do nothing: the runtime has no such output."""

    @property
    def alignment_queries(self) -> None:
        return None

    @property
    def alignment_keys(self) -> None:
        return None

    def prefill(self, sample: int, tokens: Ints, first: int, *, read: bool = False) -> None:
        """Run nothing."""
