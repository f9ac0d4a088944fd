"""Times of a window's tokens: the place in the audio that the alignment heads attend to when a token is chosen.

Source: transformers 5.24 `WhisperGenerationMixin._extract_token_timestamps`, for one sample. In a batch, transformers
also aligns the padding of samples that end before the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, Floats
from tightbeam.deploy.audio.segments import FRAMES, TIMESTAMP_S
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.search.token_scores import Alignment
from tightbeam.deploy.text.token_ids import as_array

__all__ = ["attention_of", "check_frames", "time_warping", "token_times", "with_times"]

DIAGONAL, UP, LEFT = 0, 1, 2
"""Steps back along a path: to the previous token and position, to the previous token, to the previous position."""


def check_frames(attention_mask: Array | None, B: int, frames: int) -> list[int | None]:
    """Return how many of the frames of each of B windows a mask [B, frames] takes. Raises InputError."""
    if attention_mask is None:
        return [None] * B
    mask = as_array("attention_mask", attention_mask)
    counts: list[int | None] = []
    if mask.shape == (B, frames) and np.isin(mask, (0, 1)).all():
        counts = mask.astype(np.int64).sum(axis=1).tolist()
    if not counts or not (mask.astype(bool) == (np.arange(frames) < np.array(counts)[:, None])).all():
        raise InputError(
            f"attention_mask is {mask.dtype} {list(mask.shape)}, expected [{B}, {frames}] of 1 for the recording's "
            "frames, which come first, and 0 for padding; leave it out if all count"
        )
    return counts


def with_times(found: SearchResult, beginning: int, own_frames: list[int | None], filter_width: int) -> SearchResult:
    """Add the times of tokens to the result of a batch, if they are asked for.

    Parameters
    ----------
    found : SearchResult
        One sequence [T] for each window.
    beginning : int
        Number of tokens of the prompt; their times are 0.
    own_frames : list of int or None
        Number of frames in each window that belong to the recording.
    filter_width : int
        Width of the median filter in source positions.
    """
    if found.scored.alignments is None:
        return found
    times = np.zeros(found.sequences.shape, np.float32)
    for row, alignment, frames in zip(times, found.scored.alignments, own_frames, strict=True):
        row[beginning : beginning + len(alignment.queries)] = token_times(alignment, frames, filter_width)
    return replace(found, token_timestamps=times)


def token_times(alignment: Alignment, frames: int | None, filter_width: int) -> npt.NDArray[np.float32]:
    """Compute the times of the new tokens of one window.

    Parameters
    ----------
    alignment : Alignment
        Queries [n, A, K] and keys [A, N, K].
    frames : int or None
        Number of frames in the window that belong to the recording; the others are left out. None takes all frames. It
        is negative for a window behind the recording's end: then, as in transformers, twice as many frames are left out
        at the window's end.
    filter_width : int
        Width of the median filter in source positions, an odd number.

    Returns
    -------
    float32 [n]
        Seconds from the beginning of the window at which each token ends. The last token has the time of the one
        before it, since no token is chosen after it; a single token has 0. If all frames are left out, the other tokens
        have -0.02, as in transformers.
    """
    matrix = attention_of(alignment, frames, filter_width)
    times = np.zeros(len(alignment.queries), np.float32)
    if len(matrix):
        times[:-1] = time_warping(-matrix.astype(np.float64)) * TIMESTAMP_S
        times[-1] = times[-2]
    return times


def attention_of(alignment: Alignment, frames: int | None, filter_width: int) -> Floats:
    """Compute how much each new token attends to each source position, compared with the other tokens.

    Parameters
    ----------
    alignment, frames, filter_width
        Arguments of `token_times`.

    Returns
    -------
    float32 [n - 1, N']
        Standardised and filtered attention, averaged over the heads. Row i belongs to the step that is fed token i, so
        the last token has no row.
    """
    weights = alignment.weights()[:, 1:]
    if frames is not None:
        weights = weights[..., : frames // FRAMES][..., : frames // FRAMES]
    if not weights.size:
        return np.zeros(weights.shape[1:], np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):  # for positions that all tokens attend to alike
        weights = (weights - weights.mean(axis=1, keepdims=True)) / weights.std(axis=1, keepdims=True)
    filtered: Floats = np.stack([_median(head, filter_width) for head in weights]).mean(axis=0)
    return filtered


def _median(rows: Array, width: int) -> Array:
    """Filter rows [n, N], mirrored at both ends, by the median of ``width`` neighbours. NaN counts as the largest."""
    reach = width // 2
    if rows.shape[1] <= reach:
        return rows
    padded = np.pad(rows, ((0, 0), (reach, reach)), mode="reflect")
    neighbours = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
    return np.partition(neighbours, reach, axis=2)[..., reach]


def time_warping(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Align rows with columns at the lowest cost by dynamic time warping, a diagonal of independent cells at a time.

    Parameters
    ----------
    costs : float64 [n, N]
        Cost of each pair. Sums are rounded to float32, as in transformers.

    Returns
    -------
    int64 [n]
        The first column of each row; -1 without columns.
    """
    n, N = costs.shape
    steps = np.full((n + 1, N + 1), LEFT, np.int8)
    steps[1:, 0] = UP
    before, last = np.full((2, n + 1), np.inf, np.float32)  # the two previous diagonals, by row
    before[0] = 0
    for diagonal in range(2, n + N + 1):
        first, end = max(1, diagonal - N), min(n, diagonal - 1) + 1
        rows = np.arange(first, end)
        both, up, left = before[first - 1 : end - 1], last[first - 1 : end - 1], last[first:end]
        choice = np.where((both < up) & (both < left), DIAGONAL, np.where((up < both) & (up < left), UP, LEFT))
        found = np.full(n + 1, np.inf, np.float32)
        found[first:end] = costs[rows - 1, diagonal - rows - 1] + np.choose(choice, (both, up, left))
        steps[rows, diagonal - rows] = choice
        before, last = last, found
    starts = np.zeros(n, np.int64)
    row, column = n, N
    while row > 0 or column > 0:
        step = steps[row, column]
        if row > 0:
            starts[row - 1] = column - 1
        row, column = row - (step != LEFT), column - (step != UP)
    return starts
