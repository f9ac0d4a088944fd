"""What the runner asks of an engine, whatever runs the graphs underneath."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Decoding", "Engine", "StepOutputs"]

Array = npt.NDArray[Any]
StepOutputs = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Candidate scores, beams and tokens of a step, each [B, C]."""


class Decoding(Protocol):
    """One batch being decoded: its source and its caches stay on the device."""

    def step(self, inputs: Mapping[str, Array]) -> StepOutputs:
        """Run one decoder step. ``inputs`` holds every small decoder input by name; those that the graph of this
        variant does not have are left out."""
        ...

    def close(self) -> None:
        """Give the cache buffers back to the engine, for the next batch of this shape. No step may follow."""
        ...

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Bytes allocated now for the source and for the generated part."""
        ...


class Engine(Protocol):
    """Runs a bundle's two graphs on one device."""

    def begin(
        self, input_ids: Array, attention_mask: Array, num_beams: int, positions: int, candidates: int
    ) -> Decoding:
        """Encode a batch, both int64 [B, N]; make room for ``positions`` generated positions and C ``candidates``."""
        ...
