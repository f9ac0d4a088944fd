"""Samples that leave a batch while it runs: whoever stands last takes a place that became free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Departure"]

AnyArray = TypeVar("AnyArray", bound=NDArray[Any])


@dataclass(frozen=True)
class Departure:
    """One batch becomes a smaller one.

    Attributes:
        moves: (from, to) for each sample that takes the place of one that leaves; every other one stays where it is.
        left: B', the samples that are left; they stand at the places 0..B'-1.
    """

    moves: tuple[tuple[int, int], ...]
    left: int

    @classmethod
    def of(cls, leaving: NDArray[np.bool_]) -> Departure:
        """The departure of the samples ``leaving`` bool [B], with as few moves as can be."""
        staying = np.flatnonzero(~leaving)
        left = len(staying)
        holes = np.flatnonzero(leaving[:left])
        return cls(tuple(zip(staying[staying >= left].tolist(), holes.tolist(), strict=True)), left)

    def apply(self, values: AnyArray, rows_per_sample: int = 1) -> AnyArray:
        """Move what belongs to each sample of a contiguous array [B x ``rows_per_sample``, ...], in place; returns the
        view of what is left."""
        n = rows_per_sample
        for source, hole in self.moves:
            values[hole * n : (hole + 1) * n] = values[source * n : (source + 1) * n]
        return values[: self.left * n]  # type: ignore[return-value]  # a view of the same type
