"""The small inputs of a batch by place, on the host. The search writes them; the decoder reads copies, by slot."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.base import SMALL_INPUTS, banned_capacity, small_inputs
from tightbeam.deploy.search.compaction import Compaction

__all__ = ["Places"]


class Places:
    """Buffers of `SMALL_INPUTS` with a place for each sample that a batch may have. Its samples use the first places.

    Parameters
    ----------
    sizes : mapping of str to int
        Sizes by letter; B is the number of places.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._rows = {"B": 1, "R": sizes["M"]}  # of each sample
        self._whole = small_inputs(sizes)
        self._used = 0
        self.inputs: dict[str, Array] = {}
        """Views of the places in use."""
        self._view()

    def add(self) -> None:
        """Take the next place."""
        self._used += 1
        self._view()

    def compact(self, compaction: Compaction) -> None:
        """Compact all arrays that are by sample or by row."""
        for name, array in self.inputs.items():
            if rows := self._rows_of(name):
                compaction.apply(array, rows)
        self._used = compaction.remaining
        self._view()

    def enlarge(self, sizes: Mapping[str, int]) -> None:
        """Replace the buffers by larger ones with the same content."""
        larger = small_inputs({**sizes, "P": self._whole["banned"].shape[1]})
        for name, array in self._whole.items():
            larger[name][tuple(map(slice, array.shape))] = array
        self._whole = larger
        self._view()

    def reserve_banned(self, count: int) -> None:
        """Make the buffer ``banned`` at least [R, count], as `Decoding.reserve_banned` does."""
        rows, capacity = self._whole["banned"].shape
        wanted = banned_capacity(count, capacity)
        if wanted != capacity:
            self._whole["banned"] = np.full((rows, wanted), -1, np.int64)
            self._view()

    def _rows_of(self, name: str) -> int:
        shape = SMALL_INPUTS[name][1]
        return self._rows.get(str(shape[0]), 0) if shape else 0

    def _view(self) -> None:
        for name, array in self._whole.items():
            rows = self._rows_of(name)
            self.inputs[name] = array[: self._used * rows] if rows else array
