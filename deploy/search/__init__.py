"""Greedy and beam search in numpy, equal to transformers' `generate` token for token: one file a search."""

from __future__ import annotations

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.beam import beam_search
from tightbeam.deploy.search.callbacks import NullCallback, SearchCallback
from tightbeam.deploy.search.greedy import greedy_search
from tightbeam.deploy.search.prompt import begin
from tightbeam.deploy.search.step import Candidates, SearchResult, Step, StepInputs

__all__ = ["Candidates", "NullCallback", "SearchCallback", "SearchResult", "Step", "StepInputs", "search"]


def search(
    step: Step,
    options: GenerationOptions,
    batch_size: int,
    beginnings: Ints | None = None,
    callback: SearchCallback | None = None,
) -> SearchResult:
    """Generate for ``batch_size`` samples: greedily when ``options.num_beams`` is 1, else with beams.

    A sample is removed from the batch as soon as no later step can change its result.

    Parameters
    ----------
    step : Step
        Called once for each generated position, with the rows of all samples still running. It owns the encoder's
        output, the caches and the buffer of tokens.
    options : GenerationOptions
    batch_size : int
        B, at least 1.
    beginnings : int64 [B, P], optional
        The tokens that each sample's rows begin with. The decoder has processed all but the last of them. By default
        ``options.prompt``, which is fed to ``step`` first.
    callback : SearchCallback, optional
        Receives tokens and results while the search runs, and may cancel samples.

    Returns
    -------
    SearchResult
        The rows of a cancelled sample are undefined.

    Raises
    ------
    ValueError
        ``batch_size`` is not positive. Exceptions of ``step`` pass through.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: a search needs at least one sample")
    if beginnings is None:
        beginnings = begin(step, options, batch_size)
    run = greedy_search if options.num_beams == 1 else beam_search
    return run(step, options, beginnings, callback or NullCallback())
