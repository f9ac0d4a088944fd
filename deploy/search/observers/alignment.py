"""The queries of the alignment heads in the steps of a sample's sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.observers._observer import Observer, SampleStep
from tightbeam.deploy.search.observers._trail import End, Trail
from tightbeam.deploy.search.step import SearchResult
from tightbeam.deploy.search.token_scores import Alignment

__all__ = ["alignment"]


class Queries(Trail):
    """The queries of one sample's rows at each step."""

    def __init__(self) -> None:
        super().__init__()
        self._queries: list[Array] = []  # by step [M, A, K]
        self._keys: Array | None = None
        self._mask: Ints | None = None

    def on_keys(self, keys: Array, mask: Ints | None) -> None:
        self._keys, self._mask = keys, mask

    def on_step(self, step: SampleStep) -> None:
        super().on_step(step)
        assert step.queries is not None
        self._queries.append(step.queries.copy())

    def add_running(self, result: SearchResult) -> SearchResult:
        return self._added(result, self.running())

    def add_finished(self, result: SearchResult) -> SearchResult:
        return self._added(result, self.finished(len(result.sequences)))

    def _added(self, result: SearchResult, ends: Sequence[End | None]) -> SearchResult:
        return replace(result, scored=replace(result.scored, alignments=tuple(map(self._alignment, ends))))

    def _alignment(self, end: End | None) -> Alignment:
        """The queries of the rows that a sequence continued, from its first token to its last."""
        assert self._keys is not None
        queries = [self._queries[step][row] for step, row, _ in self.way(end)]
        heads, _, width = self._keys.shape
        rows = np.array(queries[::-1], self._keys.dtype).reshape(-1, heads, width)
        return Alignment(rows, self._keys, self._mask)


def alignment(options: GenerationOptions, beginning: int) -> Observer | None:
    """The observer of ``return_attention`` and ``return_token_timestamps``."""
    return Queries() if options.aligned else None
