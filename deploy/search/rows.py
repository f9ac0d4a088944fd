"""Full score rows, for searches that need more than a step's top candidates: their processors in numpy, their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints, Nodes
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.tries.trie import FREE, Trie

__all__ = [
    "LogitRows",
    "Ranked",
    "Rows",
    "best",
    "candidates_of_rows",
    "common_beginning",
    "largest",
    "log_softmax",
    "repeats",
]

Ranked: TypeAlias = tuple[Floats, Ints, Ints]
"""Scores float32, beams int64 and tokens int64 [C] of one sample's candidates, best first."""

BLOCK = 64
"""Scores of which one maximum is taken. They lie a fixed distance apart, so that numpy takes many maxima at once."""


class LogitRows(Protocol):
    """The logits of a step by row: an array [R, vocabulary], or an object that reads rows from a device."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Array:
        """Return the logits [vocabulary] of a row, which the caller may overwrite."""
        ...


@dataclass(frozen=True)
class Rows:
    """The logits of a step, and what its search head applies to them. Valid until the next step.

    Scores are made once a row, in the place of its logits if they are not normalised.

    Attributes
    ----------
    logits : LogitRows
    history : int64 [R, T_history]
        Tokens of each row, left-aligned.
    lengths : int32 [B]
        Tokens of each sample's rows.
    banned : int64 [R, P]
        Tokens that get -inf; -1 is an unused entry.
    normalize : bool
        Log-softmax first.
    repetition_penalty : float
    no_repeat_ngram_size : int
    trie : Trie or None
    nodes : int32 [R]
        The node of each row in the trie; `FREE` if any token may follow.
    """

    logits: LogitRows
    history: Ints
    lengths: Array
    banned: Ints
    normalize: bool
    repetition_penalty: float
    no_repeat_ngram_size: int
    trie: Trie | None
    nodes: Nodes
    _made: dict[int, Floats] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(
        cls, options: GenerationOptions, logits: LogitRows, history: Ints, lengths: Array, banned: Ints, nodes: Nodes
    ) -> Rows:
        """Return the rows of a step whose samples share what ``options`` say to its search head."""
        return cls(
            logits=logits,
            history=history,
            lengths=lengths,
            banned=banned,
            normalize=options.normalize,
            repetition_penalty=options.repetition_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            trie=options.trie,
            nodes=nodes,
        )

    def processed(self, row: int) -> Floats:
        """The scores float32 [vocabulary] of a row, as the operator ``BeamTopK`` ranks them; not to be written to."""
        if row not in self._made:
            self._made[row] = self._process(row)
        return self._made[row]

    def banned_tokens(self, row: int) -> Ints | None:
        """The tokens of a row that have no score, each once; None if its processors do more than ban tokens."""
        free = self.trie is None or int(self.nodes[row]) == FREE
        return np.unique(self._banned(row)) if free and self.normalize and self.repetition_penalty == 1 else None

    def _history(self, row: int) -> Ints:
        return self.history[row, : int(self.lengths[row * len(self.lengths) // len(self.logits)])]

    def _banned(self, row: int) -> Ints:
        ended = repeats(self._history(row), self.no_repeat_ngram_size)
        return np.concatenate([ended, self.banned[row][self.banned[row] >= 0]])

    def _process(self, row: int) -> Floats:
        scores: Floats = self.logits[row].astype(np.float32, copy=False)
        if self.normalize:
            scores = log_softmax(scores)
        history, out = self._history(row), self._banned(row)
        node = FREE if self.trie is None else int(self.nodes[row])
        if self.repetition_penalty == 1 and not len(out) and node == FREE:
            return scores
        if not scores.flags.writeable:
            scores = scores.copy()
        if self.repetition_penalty != 1:
            seen, penalty = scores[history], np.float32(self.repetition_penalty)
            scores[history] = np.where(seen < 0, seen * penalty, seen / penalty)
        scores[out] = -np.inf
        return scores if self.trie is None or node == FREE else _only(scores, self.trie.children(node))


def log_softmax(scores: Floats) -> Floats:
    """The log-probabilities float32 [vocabulary] of scores, of which one at least is finite."""
    shifted = scores - scores.max()
    normalised: Floats = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return normalised


def _only(scores: Floats, tokens: Nodes) -> Floats:
    """The scores [vocabulary] of some tokens, and -inf for all others."""
    kept = np.full_like(scores, -np.inf)
    kept[tokens] = scores[tokens]
    return kept


def largest(scores: Floats, count: int) -> Ints:
    """The tokens of the ``count`` largest scores [vocabulary], and of the scores that equal the last one, best first;
    of equal scores the lower token first."""
    count = min(count, len(scores))
    blocks = len(scores) // BLOCK
    ranked = scores
    if blocks > 2 * count:  # so many blocks have a score of at least `least`
        ranked = scores[: blocks * BLOCK].reshape(BLOCK, blocks).max(axis=0)
    least = np.partition(ranked, len(ranked) - count)[len(ranked) - count]
    tokens = np.flatnonzero(scores >= least)
    ordered: Ints = tokens[np.argsort(-scores[tokens], kind="stable")]
    return ordered[: int(np.count_nonzero(scores[ordered] >= scores[ordered[count - 1]]))]


def repeats(history: Ints, size: int) -> Ints:
    """The tokens that would end an n-gram of ``size`` that ``history`` int64 [T] has already."""
    if not 0 < size <= len(history):
        return np.zeros(0, np.int64)
    grams = np.lib.stride_tricks.sliding_window_view(history, size)
    again = (grams[:, :-1] == history[len(history) - size + 1 :]).all(axis=1)
    found: Ints = grams[again, -1]
    return found


def best(scores: Floats, count: int) -> Ints:
    """Return the indices [B, count] of the highest scores [B, X], best first; of equal scores the lower index first."""
    order: Ints = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return order


def candidates_of_rows(scores: Sequence[Floats], beam_scores: Floats, count: int) -> Ranked:
    """Rank the continuations of one sample, as the operator ``BeamTopK`` does.

    Parameters
    ----------
    scores : sequence of M arrays, float32 [vocabulary]
        Processed scores of its rows.
    beam_scores : float32 [M]
        Scores of the rows so far.
    count : int
        C, at most the vocabulary.

    Returns
    -------
    Ranked
    """
    tokens = np.stack([largest(row, count)[:count] for row in scores])  # [M, C]
    own = np.stack([row[chosen] for row, chosen in zip(scores, tokens, strict=True)])
    totals = (own + beam_scores[:, None]).reshape(1, -1)
    order = best(totals, count)[0]
    return totals[0, order], order // count, tokens.reshape(-1)[order]


def common_beginning(sequences: Sequence[Ints]) -> Ints:
    """Return the tokens int64 [T] with which all sequences int64 [N] begin; none for no sequences."""
    shortest = min(map(len, sequences), default=0)
    if not shortest:
        return np.zeros(0, np.int64)
    rows = np.stack([sequence[:shortest] for sequence in sequences])
    differs = (rows != rows[0]).any(axis=0)
    return rows[0, : int(differs.argmax()) if differs.any() else shortest]
