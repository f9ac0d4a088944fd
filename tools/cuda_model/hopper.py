"""A model of a tile of LatentAttention as it is designed for sm_90a (docs/explanation/latent-attention-hopper.md).

    python -m tools.cuda_model.hopper

A cluster of blocks shares the states of a sample: each has a slice of the columns, adds its part of the scores to that
of the others through distributed shared memory, and forms its slice of the outputs. Nothing of this has run.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.cuda_model.gpus import GPUS, Device

__all__ = ["SHAPES", "Tile"]

KB = 1024
WARPGROUP = 128
MMA_SHARE = 0.85
"""Part of the tensor cores' rate that a chain of wgmma reaches: assumed."""
SHARED_BYTES_PER_CYCLE = 128
REMOTE_BYTES_PER_CYCLE = 32
"""Writes to another block's shared memory: assumed."""
REMOTE_CYCLES = 300
"""From a write to the barrier that another block waits at: assumed."""
SOFTMAX_CYCLES = 300
"""Of a tile beside its exponentials: maxima between warpgroups, barriers, weights into shared memory: assumed."""
EXPONENTIALS_PER_CYCLE = 16
FLOAT_LANES = 128
CHANGED = 0.25
"""Tiles in which a maximum changes and the sums are scaled: assumed."""
ENDS_S = 3e-6
"""Begin and end of a sample's split: queries in, first tile in, outputs out: assumed."""


@dataclass(frozen=True)
class Tile:
    """A block's share of a tile. ``queries``: of a cluster, ``D``: width of the states, ``blocks``: of a cluster,
    ``positions``: of a tile, ``stages``: tiles in shared memory, ``warpgroups``: that multiply, ``passes``: clusters
    that read a sample's states, each for its own queries.
    """

    name: str
    queries: int
    D: int
    blocks: int = 2
    positions: int = 64
    stages: int = 2
    warpgroups: int = 2
    passes: int = 1

    @property
    def rows(self) -> int:
        """Queries, padded to the 64 rows of a wgmma."""
        return -(-self.queries // 64) * 64

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.D // self.blocks

    @property
    def shared_bytes(self) -> dict[str, int]:
        """Shared memory of a block by what it holds."""
        return {
            "queries": self.rows * self.columns * 2,
            "states": self.stages * self.positions * self.columns * 2,
            "scores of the others": (self.blocks - 1) * self.rows * self.positions * 4,
            "weights": self.rows * self.positions * 2,
            "maxima, sums, barriers": KB,
        }

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies: sums, scores, and about 40 for the rest."""
        threads = self.warpgroups * WARPGROUP
        return self.rows * self.columns // threads + self.rows * self.positions // threads + 40

    def cycles(self, device: Device) -> dict[str, float]:
        """Cycles of a tile by step, which follow one another: with two stages a block cannot begin the next tile's
        scores before this one's states are free."""
        rate = device.flops_per_s / 2 / device.multiprocessors / device.clock_hz  # products a cycle
        products = self.rows * self.positions * self.columns / rate / MMA_SHARE
        # Each warpgroup has its own positions (scores) or columns (outputs); both read all queries or weights.
        queries_read = self.warpgroups * self.rows * self.columns * 2 + self.positions * self.columns * 2
        weights_read = self.warpgroups * self.rows * self.positions * 2 + self.positions * self.columns * 2
        sent = (self.blocks - 1) * self.rows * self.positions * 4
        scaled = self.rows * self.columns / FLOAT_LANES
        return {
            "scores": max(products, queries_read / SHARED_BYTES_PER_CYCLE),
            "exchange": sent / REMOTE_BYTES_PER_CYCLE + REMOTE_CYCLES,
            "softmax": self.rows * self.positions / EXPONENTIALS_PER_CYCLE + SOFTMAX_CYCLES + CHANGED * scaled,
            "outputs": max(products, weights_read / SHARED_BYTES_PER_CYCLE),
        }

    def tile_s(self, device: Device) -> tuple[float, float]:
        """Seconds of a tile: as computed, and of its bytes at the block's share of the memory's rate."""
        nbytes = self.positions * self.columns * 2
        return sum(self.cycles(device).values()) / device.clock_hz, nbytes * device.multiprocessors / device.bytes_per_s

    def share(self, device: Device, B: int, N: int) -> float:
        """Share of the roofline of a whole call, its tiles dealt out evenly to clusters that stay."""
        clusters = device.multiprocessors // self.blocks
        tiles = -(-B * self.passes * -(-N // self.positions) // clusters)
        samples = max(1.0, B * self.passes / clusters)
        floor_s = (B * N * self.D * 2 + 2 * B * self.passes * self.queries * self.D * 2) / device.bytes_per_s
        return floor_s / (tiles * max(self.tile_s(device)) + samples * ENDS_S)


SHAPES = {
    "BART-large": (Tile("BART-large", 64, 1024), 1024),
    "T5-base": (Tile("T5-base", 48, 768, stages=3), 512),
    "Whisper-large-v3": (Tile("Whisper-large-v3", 50, 1280, positions=32, stages=3, passes=2), 1500),
}
"""Model -> its tile and source positions."""


def main() -> None:
    """Print the budget of each model's tile."""
    device = GPUS["H200"]
    for tile, N in SHAPES.values():
        held, cycles = tile.shared_bytes, tile.cycles(device)
        print(
            f"{tile.name}: {tile.rows} rows, {tile.blocks} blocks of {tile.columns} columns, {tile.stages} stages of "
            f"{tile.positions} positions, states read {tile.passes} x"
        )
        print("  shared memory, KB: " + ", ".join(f"{name} {size / KB:.0f}" for name, size in held.items()), end="")
        print(f"; {sum(held.values()) / KB:.0f} of {device.most_bytes / KB:.0f}; {tile.registers} registers")
        print("  cycles: " + ", ".join(f"{name} {number:.0f}" for name, number in cycles.items()), end="")
        computed, moved = tile.tile_s(device)
        print(f"; {sum(cycles.values()):.0f}: {computed * 1e6:.2f} us, its bytes {moved * 1e6:.2f} us")
        shares = ", ".join(f"B {B} {100 * tile.share(device, B, N):.0f} %" for B in (8, 32, 64, 128, 320))
        print(f"  share of the roofline: {shares}")


if __name__ == "__main__":
    main()
