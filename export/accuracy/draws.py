"""``model.generate`` with the draws of a bundle, so that sampled tokens can be compared one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.generation.sampling import Sampling

__all__ = ["bundle_draws"]


@contextmanager
def bundle_draws(sources: Sequence[Sequence[int] | Array], seed: int, returned: int, drawn: int) -> Iterator[None]:
    """Let torch draw each token by the random number that a bundle draws it with; the warpers are transformers' own.

    Parameters
    ----------
    sources
        Token ids of each input, without padding.
    seed
        The seed of the bundle's run.
    returned
        Sequences of each input that are drawn by themselves; 1 with beams.
    drawn
        Numbers of each of these: new tokens, and in beam sampling the candidates of each.
    """
    keyed = [Sampling(seed=seed).for_input(source) for source in sources]
    uniforms = np.stack([each.uniforms(sequence, drawn) for each in keyed for sequence in range(returned)])
    numbers = iter(torch.from_numpy(uniforms.T[..., None]))  # [R, 1] for each draw
    original = torch.multinomial

    def multinomial(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        left, chosen = probabilities.double(), []
        for _ in range(num_samples):
            ends = left.cumsum(dim=1)
            place = (ends <= next(numbers) * ends[:, -1:]).sum(dim=1, keepdim=True)
            chosen.append(place.clamp(max=left.shape[1] - 1))  # every token with a probability is drawn already
            left = left.scatter(1, chosen[-1], 0.0)
        return torch.cat(chosen, dim=1)

    torch.multinomial = multinomial  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.multinomial = original
