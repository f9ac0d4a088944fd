"""Scales that make int8 products more exact, chosen on the rows that the products multiply.

    s_j = max |x_j|^a / max_k |W_jk|^(1 - a), rounded to a power of two         channel j of a group's rows

The formula is SmoothQuant's (Xiao et al., arXiv 2211.10438): a = 0 scales rows of the matrices to one size, a = 1
channels of the rows. The strength a of each group is the one with the smallest error of its products, as in AWQ (Lin et
al., arXiv 2306.00978), among a few and no scales at all. It is chosen on every other row, and dropped if it does not
help on the rows between them.

The error is that of the matrices, with rows of 16 bits, which cost no memory: scales that help rows of 8 bits make the
matrices of published models coarser, by 10 to 50 % in SmolLM2-135M and Whisper base. Rounding that corrects itself
(``gptq``) gains a third where channels differ, and little after they were made equal; so scales have to gain more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tightbeam.export.accuracy.calibration_run import evenly
from tightbeam.export.accuracy.product_guard import w8a16_error
from tightbeam.export.counts import counted
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.scale_groups import ScaleGroup
from tightbeam.graph_passes.precision.sites import Site

__all__ = ["STRENGTHS", "choose_scales", "scaled_rows"]

STRENGTHS = (0.3, 0.5, 0.7, 0.85)
ErrorOf = Callable[[Array, Array], float | None]
GAIN = 0.5
"""Scales are taken if they bring the sum of the squared errors below this part of it."""
MOST_ROWS, MOST_COLUMNS = 128, 256
"""Rows and columns of a product by which scales are chosen."""
LARGEST = 2.0**20
"""Scales lie between its inverse and itself, so that no number leaves float32's range."""
SMALLEST = 1e-5
"""Numbers below it count as this, since channels of zeros have no scale."""


def choose_scales(
    groups: Sequence[ScaleGroup], sites: Sequence[Site], rows: Mapping[str, Array], error_of: ErrorOf = w8a16_error
) -> dict[str, Array]:
    """Choose the scales of groups.

    Parameters
    ----------
    groups
        Channels that share scales (``scale_groups``).
    sites
        The products and embeddings of the graphs.
    rows
        float32 [rows, X] of each product, by the name of its site.
    error_of
        The error of rows [., X] times a matrix [X, Y] in the form of the products; None if it is not finite.

    Returns
    -------
    dict
        Powers of two, float32 [channels], by the name of the group; groups that no scales help are missing.
    """
    by_name = {site.name: site for site in sites}
    chosen = {}
    for group in counted(groups, "groups of channels scaled"):
        parts = [
            (_finite(rows[name]), np.asarray(by_name[name].values), channels)
            for name, channels in group.rows.items()
            if name in by_name and len(_finite(rows[name])) > 1
        ]
        scale = _best(parts, group.count, error_of) if parts else None
        if scale is not None:
            chosen[group.name] = scale
    return chosen


def scaled_rows(
    groups: Sequence[ScaleGroup], scales: Mapping[str, Array], rows: Mapping[str, Array]
) -> dict[str, Array]:
    """The rows that products multiply once ``move_scales`` has moved the scales."""
    divided = dict(rows)
    for group in groups:
        if group.name in scales:
            made: dict[int, Array] = {}  # products of the same rows keep sharing them
            for name, channels in group.rows.items():
                own = made.get(id(rows[name]))
                divided[name] = rows[name] / _of(scales[group.name], channels) if own is None else own
                made[id(rows[name])] = divided[name]
    return divided


_Part = tuple[Array, Array, Array]
"""Rows [rows, X] and matrix [X, Y] of a product, and the channel of each of the X numbers."""


def _best(parts: Sequence[_Part], count: int, error_of: ErrorOf) -> Array | None:
    """The scales [count] with the smallest errors; None if they do not gain enough."""
    largest, heaviest = np.full(count, SMALLEST), np.full(count, SMALLEST)
    for rows, matrix, channels in parts:
        kept = channels >= 0
        np.maximum.at(largest, channels[kept], np.abs(rows[::2]).max(axis=0)[kept])
        np.maximum.at(heaviest, channels[kept], np.abs(matrix).max(axis=1)[kept])
    parts = [(rows, matrix[:, evenly(matrix.shape[1], MOST_COLUMNS)], channels) for rows, matrix, channels in parts]
    found: Array | None = None
    least = _error(parts, np.ones(count, np.float32), 0, error_of)
    for strength in STRENGTHS:
        exponent = np.rint(strength * np.log2(largest) - (1 - strength) * np.log2(heaviest))
        exponent -= np.rint(np.median(exponent))
        scale = np.exp2(exponent).clip(1 / LARGEST, LARGEST).astype(np.float32)
        error = _error(parts, scale, 0, error_of)
        if error < least:
            found, least = scale, error
    if found is None:
        return None
    unscaled = _error(parts, np.ones(count, np.float32), 1, error_of)
    return found if _error(parts, found, 1, error_of) < GAIN * unscaled else None


def _error(parts: Sequence[_Part], scale: Array, first: int, error_of: ErrorOf) -> float:
    """Sum of the squared errors of the products, on every other row from ``first`` on."""
    total = 0.0
    for rows, matrix, channels in parts:
        own = _of(scale, channels)
        error = error_of(rows[first::2] / own, matrix * own[:, None])
        total += np.inf if error is None else error**2
    return total


def _of(scale: Array, channels: Array) -> Array:
    """The scale of each number of a row; 1 for numbers without a channel."""
    return np.asarray(np.append(scale, np.float32(1))[channels])


def _finite(rows: Array) -> Array:
    """Rows to choose by, without those that have NaN or infinite numbers."""
    finite = rows[np.isfinite(rows).all(axis=1)]
    return np.asarray(finite[evenly(len(finite), MOST_ROWS)] if len(finite) else finite)
