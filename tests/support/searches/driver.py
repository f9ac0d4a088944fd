"""A driver of a search over a made-up step: all samples join at once, and steps run until the last one has left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.scheduling.results import join_results
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import NullCallback, SearchCallback, SearchResult, Step, new_search


def search(
    step: Step,
    options: GenerationOptions | Sequence[GenerationOptions],
    batch_size: int,
    beginnings: Ints | None = None,
    sources: Ints | None = None,
    callback: SearchCallback | None = None,
) -> SearchResult:
    """Generate for ``batch_size`` samples, whose rows begin with ``beginnings`` [B, P]."""
    results = _Results(callback or NullCallback())
    each = [options] * batch_size if isinstance(options, GenerationOptions) else options
    run = new_search(step, each[0], results)
    samples = []
    for number, own in enumerate(each):
        beginning, source = (None if rows is None else rows[number] for rows in (beginnings, sources))
        run.join(number, own, beginning, source)
        samples.append(Sample(number, own, np.zeros(1, np.int64), 1, prompt=beginning))
    while run.places:
        run.advance()
    return join_results(samples, results.found)


class _Results:
    """The `SearchCallback` that keeps all results, and passes calls on to another."""

    def __init__(self, callback: SearchCallback) -> None:
        self._callback = callback
        self.found: dict[int, SearchResult] = {}

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        return self._callback.on_step(samples, tokens)

    def on_finished(self, sample: int, result: SearchResult) -> None:
        self.found[sample] = result
        self._callback.on_finished(sample, result)
