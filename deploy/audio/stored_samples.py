"""The samples of a recording, on disk if there are many."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array

__all__ = ["StoredSamples"]


class StoredSamples:
    """The samples of a recording, on disk if there are many.

    Parameters
    ----------
    blocks : iterable of float32 arrays [n]
        Consecutive samples.
    in_memory : int
        The most samples that stay in memory.

    Attributes
    ----------
    count : int
        The number of samples.
    close : function
        Frees the samples.
    """

    def __init__(self, blocks: Iterable[Array], in_memory: int) -> None:
        self._file = tempfile.SpooledTemporaryFile(4 * in_memory)  # noqa: SIM115  # closed with the recording
        self.close = weakref.finalize(self, self._file.close)
        self.count = 0
        for block in blocks:
            self._file.write(block.astype(np.float32, copy=False).tobytes())
            self.count += len(block)

    def read(self, part: slice) -> npt.NDArray[np.float32]:
        """Read consecutive samples float32 [n]."""
        self._file.seek(4 * part.start)
        return np.frombuffer(self._file.read(4 * (part.stop - part.start)), np.float32)
