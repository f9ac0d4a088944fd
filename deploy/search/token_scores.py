"""Scores of the tokens of a result and of the best ones in their places, and the data of their times.

Source: transformers 5.23 `GenerationMixin.compute_transition_scores`. A trail keeps what a sample's rows were given at
each step, and which row each of them continued, so that a sequence is followed back from its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.generation.scoring import Scoring
from tightbeam.deploy.search.rows import largest

__all__ = ["Alignment", "Alternatives", "End", "RowScores", "Scored", "Trail"]

NONE = -np.inf


@dataclass(frozen=True)
class Alternatives:
    """The best tokens at each position of S sequences, best first; of equal scores the lower token.

    Attributes
    ----------
    tokens : int64 [S, T, n]
        -1 where fewer may come, and behind the end of a sequence.
    scores : float32 [S, T, n]
        -inf there.
    """

    tokens: Ints
    scores: Floats


@dataclass(frozen=True, eq=False)
class Alignment:
    """Queries and keys of the alignment heads of a speech model, which give the times of a sequence's n new tokens.

    Attributes
    ----------
    queries : floats [n, A, K]
        Those of the steps that the tokens were chosen in.
    keys : floats [A, N, K]
        Those of the sound, by position.
    """

    queries: Array
    keys: Array


@dataclass(frozen=True)
class Scored:
    """The facts of a result about single tokens, each None unless it was asked for.

    Attributes
    ----------
    tokens : float32 [S, T] or None
        The score of each new token, 0 behind the end of a sequence.
    alternatives : Alternatives or None
    alignments : tuple of Alignment, or None
        One for each sequence.
    """

    tokens: Floats | None = None
    alternatives: Alternatives | None = None
    alignments: tuple[Alignment, ...] | None = None

    def rows(self, chosen: slice) -> Scored:
        """Return the part of some sequences."""
        tokens, others, aligned = self.tokens, self.alternatives, self.alignments
        return Scored(
            None if tokens is None else tokens[chosen],
            None if others is None else Alternatives(others.tokens[chosen], others.scores[chosen]),
            None if aligned is None else aligned[chosen],
        )

    @staticmethod
    def join(parts: Sequence[tuple[Sequence[int], Scored]], count: int) -> Scored:
        """Join parts to the whole of ``count`` sequences; each part has the places of its own ones."""
        first = parts[0][1] if parts else Scored()
        tokens, others = first.tokens, first.alternatives
        if tokens is not None:
            longest = max(part.tokens.shape[1] for _, part in parts if part.tokens is not None)
            tokens = np.zeros((count, longest), np.float32)
        if others is not None:
            shapes = [part.alternatives.tokens.shape for _, part in parts if part.alternatives is not None]
            shape = count, max(shape[1] for shape in shapes), max(shape[2] for shape in shapes)
            others = Alternatives(np.full(shape, -1, np.int64), np.full(shape, NONE, np.float32))
        for places, part in parts:
            rows = np.array(places, np.int64)
            if tokens is not None and part.tokens is not None:
                tokens[rows, : part.tokens.shape[1]] = part.tokens
            if others is not None and part.alternatives is not None:
                _, T, n = part.alternatives.tokens.shape
                others.tokens[rows, :T, :n] = part.alternatives.tokens
                others.scores[rows, :T, :n] = part.alternatives.scores
        placed = {
            place: own for places, part in parts for place, own in zip(places, part.alignments or (), strict=False)
        }
        return Scored(tokens, others, tuple(placed[place] for place in sorted(placed)) if placed else None)


class RowScores:
    """The scores by which a row's next token was chosen.

    Parameters
    ----------
    scores : floats [X]
        -inf for a token that may not come.
    tokens : int64 [X], optional
        The tokens that they are of; by default the whole vocabulary. No other may come.
    normalize : bool, optional
        Give log-probabilities, the log-softmax of the scores. Scores of -inf alone stay as they are.
    """

    def __init__(self, scores: Floats, tokens: Ints | None = None, *, normalize: bool = False) -> None:
        self._scores, self._tokens = scores, tokens
        self._highest = self._log_total = np.float32(0)
        if normalize and (highest := scores.max()) != NONE:
            weights = scores - highest
            np.exp(weights, out=weights)
            self._highest, self._log_total = highest, np.float32(np.log(weights.sum(dtype=np.float64)))

    def _given(self, scores: Floats) -> Floats:
        """Some of the scores as they are given."""
        return (scores - self._highest) - self._log_total

    def of(self, token: int) -> float:
        """The score of a token."""
        own = self._scores[token : token + 1] if self._tokens is None else self._scores[self._tokens == token]
        return float(self._given(own)[0]) if len(own) else NONE

    def best(self, count: int) -> tuple[Ints, Floats]:
        """The best tokens int64 [count] and their scores float32 [count]; -1 and -inf where there are fewer."""
        if self._tokens is None and np.count_nonzero(self._scores > NONE) > count:
            order = largest(self._scores, count)[:count]
        else:
            may = np.flatnonzero(self._scores > NONE)
            ids = may if self._tokens is None else self._tokens[may]
            order = may[np.lexsort((ids, -self._scores[may]))][:count]
        tokens, scores = np.full(count, -1, np.int64), np.full(count, NONE, np.float32)
        tokens[: len(order)] = order if self._tokens is None else self._tokens[order]
        scores[: len(order)] = self._given(self._scores[order])
        return tokens, scores


@dataclass(frozen=True)
class End:
    """The last token of a sequence: its step, the row that it continued, and its score."""

    step: int
    row: int
    score: float


class Trail:
    """The scores of one sample's rows at each step.

    Parameters
    ----------
    scoring : Scoring

    Attributes
    ----------
    keys : floats [A, N, K] or None
        The keys of the sample's alignment heads, where times of tokens are asked for.
    heads : list of End
        The newest token of each row; None before there are any.
    pool : list of End or None
        The last token of each finished sequence of beam search.
    """

    def __init__(self, scoring: Scoring) -> None:
        self._scoring = scoring
        self._parents: list[list[int]] = []  # by step: the row that each row continued
        self._scores: list[list[float]] = []  # by step: the score of the token that it got
        self._best: list[dict[int, tuple[Ints, Floats]]] = []  # by step: the best tokens of rows that were continued
        self._queries: list[Array] = []  # by step [M, A, K], where they are given
        self._rows: dict[int, RowScores] = {}
        self.keys: Array | None = None
        self.heads: list[End | None] = []
        self.pool: list[End | None] = []

    def begin(self, scores_of: Callable[[int], RowScores], queries: Array | None = None) -> None:
        """Begin a step, with a function that gives the scores of a row, and the queries [M, A, K] of the rows."""
        self._scores_of = scores_of
        if queries is not None:
            self._queries.append(queries.copy())
        self._rows = {}
        self._best.append({})

    def end(self, row: int, token: int) -> End:
        """The end of a sequence that a token of this step ends, behind the tokens of a row."""
        if row not in self._rows:
            self._rows[row] = self._scores_of(row)
            if self._scoring.alternatives:
                self._best[-1][row] = self._rows[row].best(self._scoring.alternatives)
        return End(len(self._best) - 1, row, self._rows[row].of(token))

    def advance(self, parents: Ints, tokens: Ints, ended: Bools) -> None:
        """Let each row continue its parent int64 [M] by a token int64 [M]; rows that have ended, bool [M], do not."""
        before = self.heads or [None] * len(parents)
        each = zip(parents.tolist(), tokens.tolist(), ended.tolist(), before, strict=True)
        self.heads = [old if over else self.end(row, token) for row, token, over, old in each]
        self._parents.append([0 if end is None else end.row for end in self.heads])
        self._scores.append([0 if end is None else end.score for end in self.heads])

    def scored(self, ends: Sequence[End | None]) -> Scored:
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
            None if self.keys is None else tuple(map(self._alignment, ends)),
        )

    def _alignment(self, end: End | None) -> Alignment:
        """The queries of the rows that a sequence continued, from its first token to its last."""
        assert self.keys is not None
        queries: list[Array] = []
        row = 0 if end is None else end.row
        for step in range(-1 if end is None else end.step, -1, -1):
            queries.append(self._queries[step][row])
            row = self._parents[step - 1][row] if step else row
        heads, _, width = self.keys.shape
        return Alignment(np.array(queries[::-1], self.keys.dtype).reshape(-1, heads, width), self.keys)
