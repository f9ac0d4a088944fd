"""Greedy and beam search in plain numpy, equal to transformers' `generate` token for token; one file per search."""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.generation import GenerationOptions
from tightbeam.deploy.search.beam import beam_search
from tightbeam.deploy.search.greedy import greedy_search
from tightbeam.deploy.search.step import Candidates, Ints, SearchResult, Step, StepInputs

__all__ = ["Candidates", "SearchResult", "Step", "StepInputs", "search"]


def search(step: Step, options: GenerationOptions, batch_size: int, beginnings: Ints | None = None) -> SearchResult:
    """Generate for ``batch_size`` samples: greedily when ``options.num_beams`` is 1, else with beams.

    ``beginnings`` int64 [B, P]: the tokens that the rows of a sample begin with, by default the start token alone.
    ``step`` is called once for each generated position, with the state of the rows of all samples still running; it
    owns the encoder's output, the cache and the tokens' buffer. A sample leaves as soon as nothing can change what is
    returned for it. Raises ``ValueError`` when ``batch_size`` is not positive, and whatever ``step`` raises.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: a search needs at least one sample")
    if beginnings is None:
        beginnings = np.full((batch_size, 1), options.decoder_start_token_id, np.int64)
    run = greedy_search if options.num_beams == 1 else beam_search
    return run(step, options, beginnings)
