"""Scores of the tokens of a sample's rows, and the best tokens in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.scoring import Scoring
from tightbeam.deploy.search.observers._observer import Observer, SampleStep
from tightbeam.deploy.search.observers._trail import End, Trail
from tightbeam.deploy.search.step import SearchResult
from tightbeam.deploy.search.token_scores import NONE, Alternatives, RowScores

__all__ = ["token_scores"]


class TokenScores(Trail):
    """The scores of one sample's rows at each step.

    Parameters
    ----------
    scoring : Scoring
    """

    def __init__(self, scoring: Scoring) -> None:
        super().__init__()
        self._scoring = scoring
        self._best: list[dict[int, tuple[Ints, Floats]]] = []  # by step: the best tokens of rows that were continued
        self._rows: dict[int, RowScores] = {}

    def on_step(self, step: SampleStep) -> None:
        super().on_step(step)
        self._scores_of = step.chosen_by
        self._rows = {}
        self._best.append({})

    def score(self, row: int, token: int) -> float:
        if row not in self._rows:
            self._rows[row] = self._scores_of(row)
            if self._scoring.alternatives:
                self._best[-1][row] = self._rows[row].best(self._scoring.alternatives)
        return self._rows[row].of(token)

    def add_running(self, result: SearchResult) -> SearchResult:
        return self._added(result, self.running())

    def add_finished(self, result: SearchResult) -> SearchResult:
        return self._added(result, self.finished(len(result.sequences)))

    def _added(self, result: SearchResult, ends: Sequence[End | None]) -> SearchResult:
        """Add the scores of the sequences with these ends."""
        T = max((end.step + 1 for end in ends if end is not None), default=0)
        shape = len(ends), T, self._scoring.alternatives
        tokens = np.zeros(shape[:2], np.float32)
        others = Alternatives(np.full(shape, -1, np.int64), np.full(shape, NONE, np.float32))
        for sequence, end in enumerate(ends):
            for step, row, score in self.way(end):
                tokens[sequence, step] = score
                if self._scoring.alternatives:
                    others.tokens[sequence, step], others.scores[sequence, step] = self._best[step][row]
        scored = replace(
            result.scored,
            tokens=tokens if self._scoring.tokens else None,
            alternatives=others if self._scoring.alternatives else None,
        )
        return replace(result, scored=scored)


def token_scores(options: GenerationOptions, beginning: int) -> Observer | None:
    """The observer of ``return_token_scores``, ``return_alternatives`` and ``return_token_timestamps``."""
    return None if options.scoring is None else TokenScores(options.scoring)
