"""Segments of a window: its tokens, cut at pairs of timestamps, and the start of the next window.

Source: transformers 5.24 `WhisperGenerationMixin._retrieve_segment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["FRAMES", "FRAME_S", "TIMESTAMP_S", "Segment", "TokenTime", "cut_segments"]

TIMESTAMP_S = 0.02
"""Seconds from one timestamp to the next."""
FRAME_S = 0.01
"""Seconds of one frame of the features."""
FRAMES = 2
"""Frames from one timestamp to the next."""


@dataclass(frozen=True)
class TokenTime:
    """The time of a token of a recording.

    Attributes
    ----------
    token : int
    end_s : float
        Seconds from the beginning of the recording. The token begins at the end of the token before it.
    probability : float
        The token's probability among the tokens that the score processors allow.
    """

    token: int
    end_s: float
    probability: float


@dataclass(frozen=True)
class Segment:
    """A part of a recording that the model has put between two timestamps.

    Attributes
    ----------
    start_s, end_s : float
        Seconds from the beginning of the recording.
    tokens : tuple of int
        Its tokens, timestamps among them.
    times : tuple of TokenTime or None
        The times of its tokens; None if they were not asked for.
    """

    start_s: float
    end_s: float
    tokens: tuple[int, ...]
    times: tuple[TokenTime, ...] | None = None


def cut_segments(
    tokens: Sequence[int], first: int, seek: int, frames: int, times: Sequence[TokenTime] | None = None
) -> tuple[list[Segment], int]:
    """Cut the tokens of one window.

    Parameters
    ----------
    tokens : sequence of int
        New tokens of the window, without an end token.
    first : int
        The timestamp of 0.00 s.
    seek : int
        The window's first frame in the recording.
    frames : int
        Number of frames in the window that belong to the recording.
    times : sequence of TokenTime, optional
        The times of the tokens.

    Returns
    -------
    segments : list of Segment
    offset : int
        Frames from the first frame of this window to the first frame of the next, at least 1.
    """
    begin_s = seek * TIMESTAMP_S / FRAMES
    stamps = [token >= first for token in tokens]
    ends_single = stamps[-2:] == [False, True]
    cuts = [place + 1 for place in range(len(tokens) - 1) if stamps[place] and stamps[place + 1]]
    if not cuts:
        last = float(int(np.float32(frames) * np.float32(FRAME_S) / np.float32(TIMESTAMP_S)))  # as torch computes it
        found = [token for token in tokens if token >= first]
        if found and found[-1] != first:
            last = float(found[-1] - first)
        whole = None if times is None else tuple(times)
        return [Segment(begin_s, begin_s + last * TIMESTAMP_S, tuple(tokens), whole)], frames
    if ends_single:
        cuts.append(len(tokens))
    else:
        cuts[-1] += 1  # the last segment keeps both timestamps of its pair
    segments, before = [], 0
    for cut in cuts:
        own = tokens[before:cut]
        end = own[-1] if cut != cuts[-1] or ends_single else own[-2]
        start_s, end_s = (begin_s + (token - first) * TIMESTAMP_S for token in (own[0], end))
        segments.append(Segment(start_s, end_s, tuple(own), None if times is None else tuple(times[before:cut])))
        before = cut
    if ends_single:
        return segments, frames
    offset = (tokens[before - 2] - first) * FRAMES
    return segments, offset or frames  # transformers would run a window that ends at 0.00 s again and again
