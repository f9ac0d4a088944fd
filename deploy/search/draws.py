"""Draws of sampling: tokens and continuations by their weights, each with a random number.

Source: our own; transformers draws with `torch.multinomial`, from the same distribution.
"""

from __future__ import annotations

import math

import numpy as np

from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.search.warpers import LISTED, row_weights
from tightbeam.plugins.draw import native_draw

__all__ = ["NONE_LEFT", "drawn", "drawn_from_row", "drawn_in_turn", "keyed_settings", "settings_of"]

FEW = 2048
"""Weights that are summed up anew for each draw."""
NONE_LEFT = "every token is banned, so that none can be drawn; ban fewer"


def keyed_settings(options: GenerationOptions) -> Sampling:
    """The sampling settings of a sample that draws its tokens, with a key of random numbers."""
    sampling = settings_of(options)
    return sampling if sampling.key else sampling.for_input()


def settings_of(options: GenerationOptions) -> Sampling:
    """The sampling settings of a sample that draws its tokens."""
    assert options.sampling is not None
    return options.sampling


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
    """Draw several places one after another, each by its share of what is left and none twice.

    Parameters
    ----------
    weights : float64 [n]
    uniforms : float64 [K]
        Random numbers in [0, 1).

    Returns
    -------
    int64 [K]
        Places in the order in which they were drawn; fewer than K if fewer weigh anything.
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
    """Draw places in turn. A place that is drawn weighs nothing in ``left`` float64 [n] from then on."""
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
    """Draw a token from the processed scores float32 [vocabulary] of a whole row; -1 if all are -inf.
    ``best`` is a number like the largest score, NaN if none is known."""
    native = None if sampling.truncates else native_draw()
    if native is not None:
        return native(np.ascontiguousarray(scores), best, sampling.temperature, uniform)
    if scores.max() == -np.inf:
        return -1
    weights, tokens = row_weights(scores, sampling)
    if tokens is None:
        return _drawn_by_blocks(weights, uniform)
    return int(drawn(tokens[None], weights[None], np.array([uniform]))[0])


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
