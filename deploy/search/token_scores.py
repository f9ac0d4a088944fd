"""Scores of the tokens of a result and of the best ones in their places, and the data of their times.

Source: transformers 5.24 `GenerationMixin.compute_transition_scores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints
from tightbeam.deploy.search.rows import largest

__all__ = ["Alignment", "Alternatives", "RowScores", "Scored"]

NONE = -np.inf


@dataclass(frozen=True)
class Alternatives:
    """The best tokens at each position of S sequences, best first; of equal scores the lower token.

    Attributes
    ----------
    tokens : int64 [S, T, n]
        -1 if fewer tokens may come, and behind the end of a sequence.
    scores : float32 [S, T, n]
        -inf there.
    """

    tokens: Ints
    scores: Floats


@dataclass(frozen=True, eq=False)
class Alignment:
    """Queries and keys of the alignment heads: the places of the source that a sequence's n new tokens come from.

    Attributes
    ----------
    queries : floats [n, A, K]
        Queries of the steps that the tokens were chosen in.
    keys : floats [A, N, K]
        Keys of the source, by position.
    mask : int64 [N] or None
        0 at padding of the source; None if all positions count.
    """

    queries: Array
    keys: Array
    mask: Ints | None = None

    def weights(self) -> Floats:
        """Return the attention float32 [A, n, N] of the steps that the tokens were chosen in."""
        queries, keys = (np.asarray(each, np.float32) for each in (self.queries, self.keys))
        scores: Floats = queries.swapaxes(0, 1) @ keys.swapaxes(1, 2)
        if self.mask is not None:
            scores[..., self.mask == 0] = -np.inf
        weights: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=np.float32(-np.inf)))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights


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
        """The best tokens int64 [count] and their scores float32 [count]; -1 and -inf if fewer may come."""
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
