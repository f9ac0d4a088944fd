"""Times in a recording of sound that parts of it were joined to."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["WHOLE", "JoinedTimes"]


@dataclass(frozen=True)
class JoinedTimes:
    """The parts of a recording that sound was joined of, for times in it.

    Attributes
    ----------
    starts_s : tuple of float
        The beginning of each part in the joined sound.
    shifts_s : tuple of float
        What is added to a time of each part.
    end_s : float
        The end of the joined sound.
    pad_s : float
        Seconds at both ends of a part in which nobody speaks: a segment that begins or ends in them is not of that
        part.
    """

    starts_s: tuple[float, ...] = (0.0,)
    shifts_s: tuple[float, ...] = (0.0,)
    end_s: float = math.inf
    pad_s: float = 0.0

    @classmethod
    def from_s(cls, seconds: float) -> JoinedTimes:
        """Return the times of sound that begins so many seconds after the beginning of the recording."""
        return cls((0.0,), (seconds,))

    @classmethod
    def of_parts(cls, parts_s: Sequence[tuple[float, float]], pad_s: float) -> JoinedTimes:
        """Join parts, of which the first and the last second in the recording are given."""
        *starts_s, whole_s = accumulate((end_s - start_s for start_s, end_s in parts_s), initial=0.0)
        shifts_s = tuple(start_s - own_s for (start_s, _), own_s in zip(parts_s, starts_s, strict=True))
        return cls(tuple(starts_s), shifts_s, whole_s, pad_s)

    def span(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Return the times in the recording of a segment of the joined sound, which may be of several parts."""
        first = max(0, bisect_right(self.starts_s, start_s + self.pad_s) - 1)
        last = max(first, bisect_left(self.starts_s, end_s - self.pad_s) - 1)
        return self._within(first, start_s), max(self._within(first, start_s), self._within(last, end_s))

    def word(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Return the times in the recording of a word, which is of the part that its middle is in."""
        part = max(0, bisect_right(self.starts_s, (start_s + end_s) / 2) - 1)
        return self._within(part, start_s), self._within(part, end_s)

    def _within(self, part: int, time_s: float) -> float:
        """Return the time in the recording of a time that is taken for one of a part."""
        last_s = self.starts_s[part + 1] if part + 1 < len(self.starts_s) else self.end_s
        first_s = self.starts_s[part] if part else -math.inf
        return min(max(time_s, first_s), last_s) + self.shifts_s[part]


WHOLE = JoinedTimes()
"""The times of a whole recording."""
