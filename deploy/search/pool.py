"""The finished sequences of a group of beams, as releases of transformers before 5 kept them.

Source: transformers 4.56.2 `BeamHypotheses` and `BeamSearchScorer.finalize`, in their order of operations: scores are
divided in float64, and of equal scores the older sequence gives way.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.step import SearchResult

__all__ = ["Pool", "best_of_pools"]

EMPTY = 1e9
"""The worst score of a pool without sequences."""


class Pool:
    """The best finished sequences of some beams.

    Parameters
    ----------
    size : int
        The most sequences.
    options : GenerationOptions
    beginning : int
        Tokens that the sequences begin with.

    Attributes
    ----------
    found : list of (float, int64 [T])
        Score and tokens.
    done : bool
        True when the pool is final.
    """

    def __init__(self, size: int, options: GenerationOptions, beginning: int) -> None:
        self._size, self._penalty, self._stops = size, options.length_penalty, options.early_stopping
        self._longest = options.max_length - beginning
        self._worst = EMPTY
        self.found: list[tuple[float, Ints]] = []
        self.done = False

    def add(self, score: float, tokens: Ints, new: int) -> None:
        """Offer a sequence of ``new`` new tokens whose log-probabilities sum to ``score``."""
        score /= new**self._penalty
        if len(self.found) == self._size and score <= self._worst:
            return
        self.found.append((score, tokens))
        if len(self.found) > self._size:
            del self.found[min(range(len(self.found)), key=lambda index: self.found[index][0])]
            self._worst = min(found[0] for found in self.found)
        else:
            self._worst = min(score, self._worst)

    def settle(self, best: float, new: int) -> None:
        """Set ``done`` if the pool is full and no sequence that goes on from the ``best`` score, of ``new`` new tokens,
        can improve it."""
        if self.done or len(self.found) < self._size:
            return
        length = self._longest if self._stops == "never" and self._penalty > 0 else new
        self.done = self._stops is True or self._worst >= best / length**self._penalty


def best_of_pools(pools: Iterable[Pool], options: GenerationOptions, beginning: int) -> SearchResult:
    """Return the ``num_return_sequences`` best sequences of a sample's pools.

    Parameters
    ----------
    pools : iterable of Pool
    options : GenerationOptions
    beginning : int
        Tokens that the sequences begin with.

    Returns
    -------
    SearchResult
        Of equal scores the sequence that was found last comes first.
    """
    ranked = sorted((found for pool in pools for found in pool.found), key=lambda found: found[0])
    chosen = ranked[::-1][: options.num_return_sequences]
    lengths = [len(tokens) for _, tokens in chosen]
    sequences = np.full((len(chosen), max(lengths)), options.fill_token_id, np.int64)
    for row, (_, tokens) in zip(sequences, chosen, strict=True):
        row[: len(tokens)] = tokens
    scores = np.array([score for score, _ in chosen], np.float32)
    return SearchResult(sequences, scores, new_tokens=tuple(length - beginning for length in lengths))
