"""A decode step of a bundle at a length, with random tokens, to be timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tightbeam.deploy import Bundle
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.base import Decoding

__all__ = ["random_source", "step_at"]


def random_source(bundle: Bundle, batch: int, source: int) -> tuple[Array, Array]:
    """Random token ids of a batch, and their attention mask, int64 [B, N]."""
    ids = np.random.default_rng(0).integers(5, bundle.manifest.sizes.source_vocabulary, (batch, source))
    return ids, np.ones_like(ids)


def step_at(decoding: Decoding, bundle: Bundle, batch: int, beams: int, T: int) -> Callable[[], None]:
    """A step after T tokens, with a random history, and an ancestry of random reorderings."""
    generator = np.random.default_rng(T)
    inputs = decoding.inputs
    inputs["history"][:, :T] = generator.integers(5, bundle.manifest.sizes.vocabulary, (batch * beams, T))
    ancestry = inputs["ancestry"]
    for t in range(T):
        parents = generator.integers(0, beams, (batch, beams, 1))
        ancestry[:, :, :t] = np.take_along_axis(ancestry[:, :, :t], parents, axis=1)
        ancestry[:, :, t] = np.arange(beams)
    inputs["tokens"][:] = inputs["history"][:, T - 1 : T]
    inputs["positions"].fill(T - 1)
    inputs["lengths"].fill(T)
    inputs["history_lengths"].fill(T)
    inputs["beam_index"][:] = np.arange(batch * beams)
    decoding.reserve_banned(1)
    inputs["banned"].fill(2)
    inputs["normalize"][...] = True
    inputs["repetition_penalty"][...] = 1
    inputs["no_repeat_ngram_size"][...] = 3
    inputs["candidates"][:] = 2 * beams

    def step() -> None:
        decoding.step()

    return step
