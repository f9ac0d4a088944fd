"""The logits of a step on a GPU, whose rows the host copies one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints
from tightbeam.deploy.runtimes.device.cuda import CudaDevice
from tightbeam.deploy.runtimes.device.graphs import DeviceTensor

__all__ = ["DeviceLogits"]


@dataclass(frozen=True)
class DeviceLogits:
    """Rows of logits on a GPU. Each one is copied to the host when it is asked for.

    Attributes
    ----------
    device : CudaDevice
        Its stream has run the step.
    tensor : DeviceTensor
        [R, vocabulary].
    row : array [vocabulary]
        Page-locked, of one of `LOGIT_TYPES`.
    rows : int64 [R']
        The rows of ``tensor`` by place.
    """

    device: CudaDevice
    tensor: DeviceTensor
    row: Array
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Floats:
        """Return a new array float32 [vocabulary]."""
        nbytes = self.row.nbytes
        self.device.download(self.row.ctypes.data, self.tensor.address + int(self.rows[place]) * nbytes, nbytes)
        self.device.synchronize()
        if self.row.dtype == np.uint16:
            bits: Array = self.row.astype(np.uint32) << 16  # a bfloat16 is the upper half of a float32
            return bits.view(np.float32)
        return self.row.astype(np.float32)

    def of_rows(self, rows: Ints) -> DeviceLogits:
        """Return only these rows, by their places."""
        return replace(self, rows=self.rows[rows])
