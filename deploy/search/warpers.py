"""The warpers of sampling: which tokens may be drawn, and their probabilities.

Source: the warpers of transformers 5.23 `generation/logits_process.py` for temperature, top_k, top_p, min_p and
typical_p, in the order in which `generate` applies them. Of tokens with equal scores at the edge of ``top_p``, which
transformers leaves to the order of its sort, the lower ones are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.search.rows import largest
from tightbeam.plugins.draw import native_draw

__all__ = ["Warpers", "drawn", "drawn_from_row", "drawn_in_turn", "kept_scores", "row_weights", "warped_scores"]

BINS, BINS_OF_E = 4096, 64
"""Bins of scores, and bins within which a weight falls to 1 / e of another."""
TOGETHER = 8192
"""Tokens that are counted together."""
FEW = 2048
"""Weights that are summed up anew for each draw."""
LISTED = 256
"""The most likely tokens of a row that are looked at, before all of them are."""


class Warpers:
    """The settings of R rows as columns.

    Parameters
    ----------
    settings : sequence of Sampling
        Those of each row.
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
            The weight of all tokens that are not listed, where the best one weighs 1.

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
    """Weights [n] of which only those of ``typical_p`` are left, and ``keep`` at least."""
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


def drawn(tokens: Ints, weights: Floats, uniforms: Floats) -> Ints:
    """Draw a token for each row.

    A row's tokens share the numbers from 0 to 1 in the order of their ids, each as much as its probability is: so
    rounding, which changes the order of almost equal scores, moves no share.

    Parameters
    ----------
    tokens : int64 [R, n]
    weights : float64 [R, n]
        At least one of each row is above 0.
    uniforms : float64 [R]
        Random numbers in [0, 1).

    Returns
    -------
    int64 [R]
    """
    order = np.argsort(tokens, axis=1)
    shares = np.take_along_axis(weights, order, axis=1).cumsum(axis=1)
    below = np.minimum(uniforms * shares[:, -1], np.nextafter(shares[:, -1], 0))  # a product may round up to the sum
    place = (shares <= below[:, None]).sum(axis=1)
    chosen: Ints = np.take_along_axis(np.take_along_axis(tokens, order, axis=1), place[:, None], axis=1)[:, 0]
    return chosen


def drawn_in_turn(weights: Floats, uniforms: Floats) -> Ints:
    """Draw several places one after another, none twice, each by its share of what is left.

    Parameters
    ----------
    weights : float64 [n]
    uniforms : float64 [K]
        Random numbers in [0, 1).

    Returns
    -------
    int64 [K]
        Places in the order in which they were drawn; fewer where fewer weigh anything.
    """
    if len(weights) <= FEW:
        return _drawn_of_few(weights.copy(), uniforms)
    left = np.zeros((-(-len(weights) // LISTED), LISTED))
    left.reshape(-1)[: len(weights)] = weights
    sums, chosen = left.sum(axis=1), []
    for uniform in uniforms.tolist():
        ends = sums.cumsum()
        if not ends[-1] > 0:
            break
        below = _part(uniform, float(ends[-1]))
        block = int(ends.searchsorted(below, side="right"))
        within = left[block].cumsum()
        place = int(within.searchsorted(below - (ends[block - 1] if block else 0), side="right"))
        place = min(place, int(np.flatnonzero(left[block])[-1]))  # the sum may be rounded up
        left[block, place] = 0
        sums[block] = left[block].sum()
        chosen.append(block * LISTED + place)
    return np.array(chosen, np.int64)


def _drawn_of_few(left: Floats, uniforms: Floats) -> Ints:
    """Draw places in turn; those that are drawn weigh nothing in ``left`` float64 [n] from then on."""
    chosen: list[int] = []
    for uniform in uniforms.tolist() if len(left) else ():
        ends = left.cumsum()
        total = float(ends[-1])
        if not total > 0:
            break
        chosen.append(int(ends.searchsorted(_part(uniform, total), side="right")))
        left[chosen[-1]] = 0
    return np.array(chosen, np.int64)


def _part(uniform: float, total: float) -> float:
    """A part of a total, below it: a product may be rounded up to it."""
    return min(uniform * total, math.nextafter(total, 0))


def drawn_from_row(scores: Floats, sampling: Sampling, uniform: float, best: float = np.nan) -> int:
    """Draw a token from the processed scores float32 [vocabulary] of a whole row; -1 where all are -inf. ``best`` is a
    number like the largest of them, where one is known."""
    native = None if sampling.truncates else native_draw()
    if native is not None:
        return native(np.ascontiguousarray(scores), best, sampling.temperature, uniform)
    if scores.max() == -np.inf:
        return -1
    weights, tokens = row_weights(scores, sampling)
    if tokens is None:
        return _drawn_by_blocks(weights, uniform)
    return int(drawn(tokens[None], weights[None], np.array([uniform]))[0])


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
    """The scores float64 [n] as the warpers leave them: -inf where the weight is 0; ``normalize``: their
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

    Tokens are counted into bins by their scores, so that those of one bin alone are sorted: the one in which the mass
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


def _drawn_by_blocks(weights: Floats, uniform: float) -> int:
    """Draw a token by its weight, float32 [vocabulary]: the block of tokens that has the number, then the token."""
    whole = len(weights) // LISTED * LISTED
    sums = weights[:whole].reshape(-1, LISTED).sum(axis=1)
    ends = np.append(sums, weights[whole:].sum()).cumsum(dtype=np.float64)
    below = min(uniform * ends[-1], np.nextafter(ends[-1], 0))
    block = int((ends <= below).sum())
    own = weights[block * LISTED : (block + 1) * LISTED]
    within = own.cumsum(dtype=np.float64)
    place = int((within <= below - (ends[block] - within[-1])).sum())
    return block * LISTED + min(place, int(np.flatnonzero(own)[-1]))
