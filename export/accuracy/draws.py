"""The draws of ``model.generate`` made those of a bundle, so that sampled tokens can be compared one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.generation.sampling import Sampling

__all__ = ["bundle_draws"]


@contextmanager
def bundle_draws(sources: Sequence[Sequence[int] | Array], seed: int, returned: int, steps: int) -> Iterator[None]:
    """Let torch draw each token by the random number that a bundle draws it with; the warpers are transformers' own.

    Parameters
    ----------
    sources
        Token ids of each input, without padding.
    seed
        The seed of the bundle's run.
    returned
        Sequences of each input.
    steps
        New tokens, at most.
    """
    keyed = [Sampling(seed=seed).for_input(source) for source in sources]
    uniforms = np.stack([each.uniforms(sequence, steps) for each in keyed for sequence in range(returned)])
    numbers = iter(torch.from_numpy(uniforms.T[..., None]))  # [R, 1] for each step
    original = torch.multinomial

    def multinomial(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        ends = probabilities.double().cumsum(dim=1)
        drawn: torch.Tensor = (ends <= next(numbers) * ends[:, -1:]).sum(dim=1, keepdim=True)
        return drawn

    torch.multinomial = multinomial  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.multinomial = original
