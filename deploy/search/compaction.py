"""Compaction of a batch while it runs: finished samples are removed, the last ones take their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tightbeam.deploy.arrays import Array, Bools

__all__ = ["Compaction"]

AnyArray = TypeVar("AnyArray", bound=Array)


@dataclass(frozen=True)
class Compaction:
    """Moves that shrink a batch of B samples to B'.

    Attributes
    ----------
    moves : tuple of (int, int)
        From and to, for each sample that takes the place of a removed one. All other samples keep their places.
    remaining : int
        B'. The remaining samples take the places 0..B'-1.
    """

    moves: tuple[tuple[int, int], ...]
    remaining: int

    @classmethod
    def of(cls, removed: Bools) -> Compaction:
        """Return the compaction with the fewest moves that removes the samples ``removed``, bool [B]."""
        kept = np.flatnonzero(~removed)
        remaining = len(kept)
        holes = np.flatnonzero(removed[:remaining])
        return cls(tuple(zip(kept[kept >= remaining].tolist(), holes.tolist(), strict=True)), remaining)

    def apply(self, values: AnyArray, rows_per_sample: int = 1, part: tuple[slice, ...] = ()) -> AnyArray:
        """Compact a contiguous array in place.

        Parameters
        ----------
        values : array [B * rows_per_sample, ...]
        rows_per_sample : int
        part : tuple of slice
            The part of each row that is moved; what else is in a row does not matter.

        Returns
        -------
        array [B' * rows_per_sample, ...]
            A view of the beginning of ``values``.
        """
        n = rows_per_sample
        for source, hole in self.moves:
            values[(slice(hole * n, (hole + 1) * n), *part)] = values[(slice(source * n, (source + 1) * n), *part)]
        return values[: self.remaining * n]  # type: ignore[return-value]  # a view of the same type
