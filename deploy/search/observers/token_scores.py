"""Scores of the tokens of a sample's rows, and the queries that their times are made of.

A trail keeps what a sample's rows were given at each step, and which row each of them continued, so that a sequence is
followed back from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.scoring import Scoring
from tightbeam.deploy.search.observers._observer import Observer, SampleStep
from tightbeam.deploy.search.step import SearchResult
from tightbeam.deploy.search.token_scores import NONE, Alignment, Alternatives, RowScores, Scored

__all__ = ["token_scores"]


@dataclass(frozen=True)
class End:
    """The last token of a sequence: its step, the row that it continued, and its score."""

    step: int
    row: int
    score: float


class Trail(Observer):
    """The scores of one sample's rows at each step.

    Parameters
    ----------
    scoring : Scoring
    """

    def __init__(self, scoring: Scoring) -> None:
        self._scoring = scoring
        self._parents: list[list[int]] = []  # by step: the row that each row continued
        self._scores: list[list[float]] = []  # by step: the score of the token that it got
        self._best: list[dict[int, tuple[Ints, Floats]]] = []  # by step: the best tokens of rows that were continued
        self._queries: list[Array] = []  # by step [M, A, K], if the steps give them
        self._rows: dict[int, RowScores] = {}
        self._keys: Array | None = None
        self._running: list[End | None] = []  # the newest token of each row
        self._finished: list[End | None] = []  # the last token of each finished sequence of beam search

    def on_keys(self, keys: Array) -> None:
        self._keys = keys

    def on_step(self, step: SampleStep) -> None:
        self._scores_of = step.chosen_by
        if step.queries is not None:
            self._queries.append(step.queries.copy())
        self._rows = {}
        self._best.append({})

    def _end(self, row: int, token: int) -> End:
        """The end of a sequence that a token of this step ends, behind the tokens of a row."""
        if row not in self._rows:
            self._rows[row] = self._scores_of(row)
            if self._scoring.alternatives:
                self._best[-1][row] = self._rows[row].best(self._scoring.alternatives)
        return End(len(self._best) - 1, row, self._rows[row].of(token))

    def on_finished(self, kept: Bools, old: Ints, beams: Ints, tokens: Ints) -> None:
        before = self._finished or [None] * len(kept)
        each = zip(kept.tolist(), old.tolist(), beams.tolist(), tokens.tolist(), strict=True)
        self._finished = [before[place] if stays else self._end(row, token) for stays, place, row, token in each]

    def on_tokens(self, parents: Ints, tokens: Ints, ended: Bools) -> None:
        before = self._running or [None] * len(parents)
        each = zip(parents.tolist(), tokens.tolist(), ended.tolist(), before, strict=True)
        self._running = [old if over else self._end(row, token) for row, token, over, old in each]
        self._parents.append([0 if end is None else end.row for end in self._running])
        self._scores.append([0 if end is None else end.score for end in self._running])

    def add_running(self, result: SearchResult) -> SearchResult:
        return replace(result, scored=self._scored(self._running))

    def add_finished(self, result: SearchResult) -> SearchResult:
        count = len(result.sequences)
        return replace(result, scored=self._scored(self._finished[:count] or [None] * count))

    def _scored(self, ends: Sequence[End | None]) -> Scored:
        """The scores of the sequences with these ends; None is a sequence without tokens."""
        T = max((end.step + 1 for end in ends if end is not None), default=0)
        shape = len(ends), T, self._scoring.alternatives
        tokens = np.zeros(shape[:2], np.float32)
        others = Alternatives(np.full(shape, -1, np.int64), np.full(shape, NONE, np.float32))
        for sequence, end in enumerate(ends):
            if end is None:
                continue
            row, score = end.row, end.score
            for step in range(end.step, -1, -1):
                tokens[sequence, step] = score
                if self._scoring.alternatives:
                    others.tokens[sequence, step], others.scores[sequence, step] = self._best[step][row]
                if step:
                    row, score = self._parents[step - 1][row], self._scores[step - 1][row]
        return Scored(
            tokens if self._scoring.tokens else None,
            others if self._scoring.alternatives else None,
            None if self._keys is None else tuple(map(self._alignment, ends)),
        )

    def _alignment(self, end: End | None) -> Alignment:
        """The queries of the rows that a sequence continued, from its first token to its last."""
        assert self._keys is not None
        queries: list[Array] = []
        row = 0 if end is None else end.row
        for step in range(-1 if end is None else end.step, -1, -1):
            queries.append(self._queries[step][row])
            row = self._parents[step - 1][row] if step else row
        heads, _, width = self._keys.shape
        return Alignment(np.array(queries[::-1], self._keys.dtype).reshape(-1, heads, width), self._keys)


def token_scores(options: GenerationOptions, beginning: int) -> Observer | None:
    """The observer of ``return_token_scores``, ``return_alternatives`` and ``return_token_timestamps``."""
    return None if options.scoring is None else Trail(options.scoring)
