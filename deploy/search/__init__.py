"""Greedy search, beam search (diverse, constrained) and sampling: in numpy, after transformers; one file a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch
from tightbeam.deploy.search.beam import BeamSearch
from tightbeam.deploy.search.beam_sampling import BeamSampleSearch
from tightbeam.deploy.search.callbacks import NullCallback, SearchCallback
from tightbeam.deploy.search.forced_words import ForcedWordsSearch
from tightbeam.deploy.search.greedy import GreedySearch
from tightbeam.deploy.search.group_beam import GroupBeamSearch
from tightbeam.deploy.search.sampling import SampleSearch
from tightbeam.deploy.search.step import Candidates, SearchResult, Step, StepInputs
from tightbeam.deploy.search.token_scores import Alternatives, Scored

__all__ = [
    "SEARCHES",
    "Alternatives",
    "BatchSearch",
    "Candidates",
    "NullCallback",
    "Scored",
    "SearchCallback",
    "SearchResult",
    "Step",
    "StepInputs",
    "new_search",
    "search",
]


SEARCHES: tuple[tuple[Callable[[GenerationOptions], bool], type[BatchSearch[Any]]], ...] = (
    (lambda options: options.num_beam_groups > 1, GroupBeamSearch),
    (lambda options: bool(options.force_words_ids), ForcedWordsSearch),
    (lambda options: options.samples_beams, BeamSampleSearch),
    (lambda options: options.sampling is not None, SampleSearch),
    (lambda options: options.num_beams > 1, BeamSearch),
    (lambda options: True, GreedySearch),
)
"""All searches, each behind the condition on a sample's settings under which it is chosen; the first that holds counts.
A condition on settings that are not part of `GenerationOptions.kind` would mix searches in one batch."""


def new_search(step: Step, options: GenerationOptions, callback: SearchCallback) -> BatchSearch[Any]:
    """Return a search without samples.

    Parameters
    ----------
    step : Step
    options : GenerationOptions
        The options of any sample; samples of other kinds must not join.
    callback : SearchCallback
        Receives tokens and results, and may cancel samples.
    """
    chosen = next(search for condition, search in SEARCHES if condition(options))
    return chosen(step, options, callback)


def search(
    step: Step,
    options: GenerationOptions | Sequence[GenerationOptions],
    batch_size: int,
    beginnings: Ints | None = None,
    sources: Ints | None = None,
    callback: SearchCallback | None = None,
    keys: Array | None = None,
) -> SearchResult:
    """Generate for ``batch_size`` samples: by sampling, greedily, or with beams.

    A sample is removed from the batch as soon as no later step can change its result.

    Parameters
    ----------
    step : Step
        Called once for each generated position, with the rows of all samples still running. It owns the encoder's
        output, the caches and the buffer of tokens.
    options : GenerationOptions, or a sequence of them
        For all samples, or one for each; with sampling each has a key of its own.
    batch_size : int
        B, at least 1.
    beginnings : int64 [B, P], optional
        The tokens that each sample's rows begin with. The decoder has processed all but the last of them. By default
        ``options.prompt``, which is fed to ``step`` first.
    sources : int64 [B, N], optional
        The tokens of each sample's source or prompt; None for features.
    callback : SearchCallback, optional
        Receives tokens and results while the search runs, and may cancel samples.
    keys : floats [B, A, N, K], optional
        Those of the alignment heads, where times of tokens are asked for.

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
    results = _Results(callback or NullCallback())
    each = [options] * batch_size if isinstance(options, GenerationOptions) else options
    run = new_search(step, each[0], results)
    for sample, own in enumerate(each):
        beginning, source = (None if rows is None else rows[sample] for rows in (beginnings, sources))
        run.join(sample, own, beginning, source)
        if keys is not None:
            run.align(keys[sample])
    while run.places:
        run.advance()
    return results.join(batch_size, each[0], run.filler(each[0]))


class _Results:
    """The `SearchCallback` that keeps all results, and passes calls on to another."""

    def __init__(self, callback: SearchCallback) -> None:
        self._callback = callback
        self._found: dict[int, SearchResult] = {}

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        return self._callback.on_step(samples, tokens)

    def on_finished(self, sample: int, result: SearchResult) -> None:
        self._found[sample] = result
        self._callback.on_finished(sample, result)

    def join(self, batch_size: int, options: GenerationOptions, filler: int) -> SearchResult:
        """The results of a batch in one array, padded with ``filler`` to the longest."""
        count = options.num_return_sequences
        longest = max((found.sequences.shape[1] for found in self._found.values()), default=options.beginning)
        sequences = np.full((batch_size * count, longest), filler, np.int64)
        scores = None if not options.normalize else np.zeros(batch_size * count, np.float32)
        for sample, found in self._found.items():
            rows = slice(sample * count, (sample + 1) * count)
            sequences[rows, : found.sequences.shape[1]] = found.sequences
            if scores is not None:
                scores[rows] = found.scores
        parts = [(range(sample * count, (sample + 1) * count), own.scored) for sample, own in self._found.items()]
        return SearchResult(sequences, scores, Scored.join(parts, batch_size * count))
