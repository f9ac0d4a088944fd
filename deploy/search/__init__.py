"""Greedy and beam search in plain numpy, equal to transformers' `generate` token for token; one file per search."""

from __future__ import annotations

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.beam import beam_search
from tightbeam.deploy.search.greedy import greedy_search
from tightbeam.deploy.search.prompt import begin
from tightbeam.deploy.search.step import Candidates, Ints, Listener, Nobody, SearchResult, Step, StepInputs

__all__ = ["Candidates", "Listener", "Nobody", "SearchResult", "Step", "StepInputs", "search"]


def search(
    step: Step,
    options: GenerationOptions,
    batch_size: int,
    beginnings: Ints | None = None,
    listener: Listener | None = None,
) -> SearchResult:
    """Generate for ``batch_size`` samples: greedily when ``options.num_beams`` is 1, else with beams.

    ``beginnings`` int64 [B, P]: the tokens that the rows of a sample begin with, of which the step knows all but the
    last already; by default the options' own prompt, which the step is called with.
    ``step`` is called once for each generated position, with the state of the rows of all samples still running; it
    owns the encoder's output, the cache and the tokens' buffer. A sample leaves as soon as nothing can change what is
    returned for it; ``listener`` is told then. The result has nothing to say of a sample that the listener let go.
    Raises ``ValueError`` when ``batch_size`` is not positive, and whatever ``step`` raises.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: a search needs at least one sample")
    if beginnings is None:
        beginnings = begin(step, options, batch_size)
    run = greedy_search if options.num_beams == 1 else beam_search
    return run(step, options, beginnings, listener or Nobody())
