"""The GPUs that the model is made for: datasheet figures, and what one multiprocessor does in a cycle."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from tightbeam.plugins.tensorrt.native import Gpu

__all__ = ["CHECKED", "GPUS", "Device"]


@dataclass(frozen=True)
class Device:
    """A GPU. ``clock_hz``: boost clock; ``bytes_per_s``: of the memory; ``flops_per_s``: of dense 16-bit matrix
    products with float32 sums; ``mma_share``: what ``mma.sync`` reaches of it; ``most_bytes``: shared memory of a
    block; ``shared_bytes``: of a multiprocessor.
    """

    name: str
    capability: str
    multiprocessors: int
    clock_hz: float
    bytes_per_s: float
    flops_per_s: float
    mma_share: float
    threads: int
    blocks: int
    shared_bytes: int
    most_bytes: int

    @property
    def gpu(self) -> Gpu:
        """The GPU as the launch plans take it."""
        known = {
            "multiprocessors": self.multiprocessors,
            "shared_bytes": self.most_bytes,
            "capability": int(self.capability),
        }
        return Gpu(**{name: known[name] for name in inspect.signature(Gpu).parameters})

    def blocks_at_once(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks that one multiprocessor holds at a time, 0 where not even one fits."""
        warps = -(-threads // 32)
        by_registers = 65536 // (-(-registers * 32 // 256) * 256) // warps if registers else self.blocks
        by_shared = self.shared_bytes // (shared_bytes + 1024)
        return min(self.blocks, self.threads // threads, by_registers, by_shared)


KB = 1024
GPUS = {
    device.name: device
    for device in (
        # mma.sync reaches about 600 of 990 TFLOP/s on Hopper; elsewhere it is the way to the whole rate.
        Device("H200", "90", 132, 1.755e9, 4.8e12, 989e12, 0.62, 2048, 32, 228 * KB, 227 * KB),
        Device("A100", "80", 108, 1.41e9, 2.039e12, 312e12, 1.0, 2048, 32, 164 * KB, 163 * KB),
        Device("L4", "89", 58, 2.04e9, 0.3e12, 121e12, 1.0, 1536, 24, 100 * KB, 99 * KB),
        Device("RTX 5090", "120", 170, 2.41e9, 1.792e12, 209.5e12, 1.0, 1536, 24, 100 * KB, 99 * KB),
    )
}
"""By name: those that tables are made for."""
CHECKED = (
    Device("T4", "75", 40, 1.59e9, 0.32e12, 65e12, 1.0, 1024, 16, 64 * KB, 64 * KB),
    Device("A10", "86", 72, 1.695e9, 0.6e12, 125e12, 1.0, 1536, 16, 100 * KB, 99 * KB),
    Device("B200", "100", 148, 1.85e9, 8.0e12, 2250e12, 0.27, 2048, 32, 228 * KB, 227 * KB),
    *GPUS.values(),
)
"""One of each compute capability that the documents name."""
