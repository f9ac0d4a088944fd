"""The warpers of sampling: which tokens may be drawn, and their probabilities.

Source: the warpers of transformers 5.24 `generation/logits_process.py` for temperature, top_k, top_p, min_p and
typical_p, in the order in which `generate` applies them. Of tokens with equal scores at the edge of ``top_p``, which
transformers leaves to the order of its sort, the lower ones are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.search.rows import largest

__all__ = ["LISTED", "Warpers", "forced_weights", "kept_scores", "row_weights", "warped_scores"]

BINS, BINS_OF_E = 4096, 64
"""Bins of scores, and bins within which a weight falls to 1 / e of another."""
TOGETHER = 8192
"""Tokens that are counted together."""
LISTED = 256
"""The most likely tokens of a row that are looked at, before all of them are."""


class Warpers:
    """The settings of R rows as columns.

    Parameters
    ----------
    settings : sequence of Sampling
        The settings of each row.
    """

    def __init__(self, settings: Sequence[Sampling]) -> None:
        def column(values: list[float], dtype: type) -> Floats:
            return np.array(values, dtype)[:, None]

        self.temperature = column([each.temperature for each in settings], np.float64)
        self.top_k = column([each.top_k for each in settings], np.int64)
        self.top_p = column([each.top_p for each in settings], np.float64)
        self.min_p = column([each.min_p for each in settings], np.float64)
        self.keep = column([each.keep for each in settings], np.int64)
        self._typical = [(row, each.typical_p, each.keep) for row, each in enumerate(settings) if each.typical_p < 1]
        self._cuts_p, self._cuts_min = bool((self.top_p < 1).any()), bool((self.min_p > 0).any())

    def weights(self, scores: Floats, rest: float = 0.0) -> Floats:
        """Weights of the best tokens, proportional to their probabilities.

        Parameters
        ----------
        scores : float32 [R, n]
            Processed scores of each row's best tokens, descending; all that ``top_k`` and ``typical_p`` keep.
        rest : float
            The weight of all tokens that are not listed, if the best one weighs 1.

        Returns
        -------
        float64 [R, n]
            0 for a token that cannot be drawn.
        """
        weights: Floats = np.exp((scores.astype(np.float64) - scores[:, :1]) / self.temperature)
        last = np.take_along_axis(scores, np.minimum(self.top_k, scores.shape[1]) - 1, axis=1)
        weights[(scores < last) & (self.top_k > 0)] = 0
        if self._cuts_p:
            mass = weights.cumsum(axis=1)
            cut = (mass - weights >= self.top_p * (mass[:, -1:] + rest)) & (self.top_p < 1)
            weights[cut & self._beyond(weights)] = 0
        if self._cuts_min:
            weights[(weights < self.min_p) & self._beyond(weights)] = 0
        for row, share, keep in self._typical:
            weights[row] = _typical(weights[row], share, keep)
        return weights

    def _beyond(self, weights: Floats) -> Bools:
        """The tokens bool [R, n] that are not among the best ones that stay in any case."""
        beyond: Bools = np.arange(weights.shape[1]) >= self.keep
        return beyond


def _typical(weights: Floats, mass: float, keep: int) -> Floats:
    """Weights [n], 0 but for the tokens that ``typical_p`` keeps, which are ``keep`` at least."""
    tokens = np.flatnonzero(weights)
    shares = weights[tokens] / weights.sum()
    information = -np.log(shares)
    distance = np.abs(information - (shares * information).sum())
    order = np.argsort(distance, kind="stable")
    last = min(int((shares[order].cumsum() < mass).sum()), len(order) - 1)
    kept = np.zeros_like(weights)
    near = tokens[(distance <= distance[order[last]]) | np.isin(np.arange(len(order)), order[:keep])]
    kept[near] = weights[near]
    return kept


def forced_weights(count: int, sampling: Sampling) -> Floats:
    """The weights float64 [count] of tokens that alone may follow, each with the score 0."""
    weights: Floats = Warpers([sampling]).weights(np.zeros((1, count), np.float32))[0]
    return weights


def row_weights(scores: Floats, sampling: Sampling) -> tuple[Floats, Ints | None]:
    """The weights by which a token of a whole row is drawn.

    Parameters
    ----------
    scores : float32 [vocabulary]
        Processed scores of the row, of which one at least is finite.
    sampling : Sampling

    Returns
    -------
    weights : floats [n]
    tokens : int64 [n] or None
        The tokens that they are of, all that are kept among them; None for the whole vocabulary.
    """
    weights = scores - scores.max()
    if sampling.temperature != 1:
        weights /= np.float32(sampling.temperature)
    np.exp(weights, out=weights)
    if not sampling.truncates:
        return weights, None
    tokens = largest(scores, sampling.top_k or (len(scores) if sampling.typical_p < 1 else max(LISTED, sampling.keep)))
    complete = sampling.top_k or len(tokens) == len(scores)
    rest = 0.0 if complete else max(0.0, float(weights.sum(dtype=np.float64) - weights[tokens].sum(dtype=np.float64)))
    kept = Warpers([sampling]).weights(scores[None, tokens], rest)
    if not complete and kept[0, -1] > 0:  # tokens that are not listed may be kept, too
        weights *= _nucleus(scores, weights, sampling)
        return weights, None
    return kept[0], tokens


def warped_scores(scores: Floats, weights: Floats, temperature: float, *, normalize: bool) -> Floats:
    """The scores float64 [n] as the warpers leave them, -inf for a token whose weight is 0; with ``normalize`` their
    log-softmax."""
    warped = (scores - (scores.max() if normalize else 0)) / np.float64(temperature)
    if normalize:
        warped -= np.log(weights.sum(dtype=np.float64))
    return np.where(weights > 0, warped, -np.inf)


def kept_scores(scores: Floats, sampling: Sampling) -> Floats:
    """The scores float32 [vocabulary] of a row, -inf for tokens that cannot be drawn."""
    if not sampling.truncates:
        return scores
    tokens = largest(scores, sampling.top_k or len(scores))
    kept = tokens[Warpers([sampling]).weights(scores[None, tokens])[0] > 0]
    found = np.full_like(scores, -np.inf)
    found[kept] = scores[kept]
    return found


def _nucleus(scores: Floats, weights: Floats, sampling: Sampling) -> Bools:
    """The tokens bool [vocabulary] that ``top_p`` and ``min_p`` keep.

    Tokens are counted into bins by their scores, so that one bin alone is sorted: the one in which the mass
    of the tokens before reaches ``top_p``.
    """
    if sampling.top_p == 1:
        return weights >= sampling.min_p
    best, scale = scores.max(), np.float32(BINS_OF_E / sampling.temperature)
    bins, ends = np.empty(len(scores), np.int16), np.zeros(BINS)
    for start in range(0, len(scores), TOGETHER):  # arrays of their own would be new pages each time
        own = slice(start, start + TOGETHER)
        bins[own] = np.minimum((best - scores[own]) * scale, np.float32(BINS - 1))
        ends += np.bincount(bins[own], weights[own], BINS)
    np.cumsum(ends, out=ends)
    mass = sampling.top_p * ends[-1]
    edge = int(ends.searchsorted(mass))
    tokens = np.flatnonzero(bins == edge)
    tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
    held = weights[tokens].astype(np.float64)
    before = (ends[edge - 1] if edge else 0) + held.cumsum() - held
    kept: Bools = bins < edge
    kept[tokens[: max(not edge, int((before < mass).sum()))]] = True  # the best one of all stays
    if sampling.min_p > 0:
        kept &= weights >= sampling.min_p
    return kept
