"""What the runner asks of an engine, whatever runs the graphs underneath."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints
from tightbeam.deploy.search.compaction import Compaction

__all__ = [
    "CANDIDATE_OUTPUTS",
    "ENCODER_INPUTS",
    "SMALL_INPUTS",
    "SOURCE_DIMENSIONS",
    "Decoding",
    "Runtime",
    "StepOutputs",
    "banned_capacity",
    "lay_out",
    "resolve",
    "sizes_of",
    "small_inputs",
]

StepOutputs = tuple[Floats, Ints, Ints]
"""Candidate scores, beams and tokens of a step, each [B, C]."""

SMALL_INPUTS: dict[str, tuple[type[np.generic], tuple[int | str, ...]]] = {
    "tokens": (np.int64, ("R", 1)),
    "positions": (np.int64, ("R", 1)),
    "lengths": (np.int32, ("B",)),
    "first_positions": (np.int32, ("B",)),
    "ancestry": (np.int32, ("B", "M", "T_max")),
    "beam_index": (np.int64, ("R",)),
    "history": (np.int64, ("R", "T_history")),
    "history_lengths": (np.int32, ("B",)),
    "beam_scores": (np.float32, ("B", "M")),
    "banned": (np.int64, ("R", "P")),
    "normalize": (np.bool_, ()),
    "repetition_penalty": (np.float32, ()),
    "no_repeat_ngram_size": (np.int64, ()),
    "candidates": (np.int64, (1,)),
}
"""The decoder inputs that the host writes, with their types and shapes. ``ancestry`` and ``history`` have room for the
whole run; ``lengths`` and ``history_lengths`` say how much of them counts, and the rest holds 0, which is a valid slot
and a valid token. ``first_positions``: the position of the first token that the decoder is fed, the last one of a
prompt; 0 where there is none."""

CANDIDATE_OUTPUTS: dict[str, type[np.generic]] = {
    "candidate_scores": np.float32,
    "candidate_beams": np.int64,
    "candidate_tokens": np.int64,
}
"""The decoder outputs that the host reads, each [B, C]."""
ENCODER_INPUTS = frozenset({"input_ids", "input_features", "attention_mask", "num_beams"})
SOURCE_DIMENSIONS = frozenset({"B", "R", "N"})
LARGE_BANNED_CAPACITY = 1024
"""Banned tokens of a row from which on room that is not needed is given back."""


class Decoding(Protocol):
    """One batch being decoded: its source and its caches stay on the device, in buffers bound once."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The host's buffers of all ``SMALL_INPUTS``, whether the graph of this variant has them or not: write into
        them and call ``step``. Other buffers stand here after ``leave`` and ``reserve_banned``."""
        ...

    def step(self) -> StepOutputs:
        """Run one decoder step over what ``inputs`` holds. The results are buffers too: the next step overwrites them.

        A token of -1 marks a sample whose scores are NaN."""
        ...

    def compact(self, compaction: Compaction) -> None:
        """Let samples go: moves what belongs to those that take their places, ``inputs`` too, and makes every buffer
        a view of the samples that are left. Their rows alone are run from then on."""
        ...

    def reserve_banned(self, count: int) -> None:
        """Make the buffer ``banned`` at least [R, count]; a new one holds -1."""
        ...

    def close(self) -> None:
        """Give the cache buffers back to the engine, for the next batch of this shape. No step may follow."""
        ...

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Bytes allocated for the source and for the generated part."""
        ...


class Runtime(Protocol):
    """Runs a bundle's two graphs on one device."""

    def begin(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        positions: int,
        candidates: int,
        prompt_length: int = 1,
    ) -> Decoding:
        """Encode a batch: token ids int64 [B, N], or a spectrogram's features float32 [B, mels, frames], with
        ``attention_mask`` int64 [B, N] over the positions that the encoder makes of it. Make room for ``positions``
        positions of the decoder and C ``candidates``.

        ``prompt_length``: P, the tokens that each row's history begins with before the decoder is fed the last of them.
        """
        ...


def sizes_of(B: int, N: int, num_beams: int, positions: int, prompt_length: int) -> dict[str, int]:
    """What ``Runtime.begin`` is asked for, by the letters of shapes, before the first step."""
    return {
        **{"B": B, "N": N, "M": num_beams, "R": B * num_beams, "T_max": positions, "T": 0, "P": 0},
        "T_history": prompt_length - 1 + positions,
    }


def resolve(shape: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape by letters as numbers."""
    return tuple(sizes[size] if isinstance(size, str) else size for size in shape)


def lay_out(nbytes: Mapping[str, int], alignment: int) -> tuple[dict[str, int], int]:
    """Where each of some arrays begins in one block, aligned, and the bytes of the block."""
    starts, end = {}, 0
    for name, size in nbytes.items():
        starts[name] = end
        end += -(-size // alignment) * alignment
    return starts, end


def small_inputs(sizes: Mapping[str, int]) -> dict[str, Array]:
    """New buffers, all zero, of ``SMALL_INPUTS``; ``sizes`` gives B, M, R, T_max, T_history and P."""
    return {name: np.zeros(resolve(shape, sizes), dtype) for name, (dtype, shape) in SMALL_INPUTS.items()}


def banned_capacity(count: int, room: int) -> int:
    """For how many banned tokens of a row a buffer should have room where ``count`` are banned and it has ``room``."""
    if count > room or room > max(4 * count, LARGE_BANNED_CAPACITY):  # a choice among a few bans all the others, once
        return 1 << (count - 1).bit_length() if count else 0
    return room
