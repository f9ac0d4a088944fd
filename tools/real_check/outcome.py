"""What one side makes of a task, and how far a bundle's outcome is torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tightbeam.deploy.arrays import Array

__all__ = ["WINDOWED", "Counts", "Outcome", "Part", "equal"]

TIME_TOLERANCE_S = 1e-5
"""Two times of tokens that differ by less are those of the same frame."""
WINDOWED = "recordings"
"""Name, among the settings, of what is gone through by timestamps."""


@dataclass(frozen=True)
class Part:
    """A segment of a recording.

    Attributes
    ----------
    start_s, end_s : float
    tokens : list of int
    times_s : list of float
        The end of each token; empty if the checkpoint has no alignment heads.
    """

    start_s: float
    end_s: float
    tokens: list[int]
    times_s: list[float]

    def equals(self, other: Part) -> bool:
        """True for the same tokens at the same times."""
        mine, others = ([part.start_s, part.end_s, *part.times_s] for part in (self, other))
        return (
            self.tokens == other.tokens
            and len(mine) == len(others)
            and all(abs(one - two) <= TIME_TOLERANCE_S for one, two in zip(mine, others, strict=True))
        )


@dataclass(frozen=True)
class Outcome:
    """What one side makes of a task.

    Attributes
    ----------
    sequences : mapping of str to list of list of int
        By name of a setting: the sequence of each row, from the start token on, or after the prompt.
    texts : mapping of str to list of str
        The same as text.
    recordings : list of list of Part
        The segments of each recording that is gone through by timestamps.
    log_probabilities : list of floats [T]
        Those of the scored tokens of each text.
    distributions : list of float32 [T, vocabulary]
        The log-probabilities of all tokens at the same places.
    """

    sequences: Mapping[str, list[list[int]]]
    texts: Mapping[str, list[str]]
    recordings: Sequence[Sequence[Part]] = ()
    log_probabilities: Sequence[Array] = field(default_factory=list)
    distributions: Sequence[Array] = field(default_factory=list)


@dataclass(frozen=True)
class Counts:
    """Sequences that are equal to torch's; those that differ by rounding alone; all."""

    equal: int
    ties: int
    all: int

    @property
    def differing(self) -> int:
        """Sequences that differ by more than a tie."""
        return self.all - self.equal - self.ties


def equal(
    mine: Outcome, expected: Outcome, is_tie: Callable[[str, int, list[int]], bool] = lambda name, index, row: False
) -> dict[str, Counts]:
    """Count what is equal, by name of a setting.

    Parameters
    ----------
    mine, expected
        The outcomes of a bundle and of torch.
    is_tie
        Tells of a setting, a row and the bundle's sequence whether rounding alone decides there.
    """
    counts = {}
    for name, rows in expected.sequences.items():
        different = [index for index, row in enumerate(rows) if mine.sequences[name][index] != row]
        ties = sum(is_tie(name, index, mine.sequences[name][index]) for index in different)
        counts[name] = Counts(len(rows) - len(different), ties, len(rows))
    if expected.recordings:
        same = sum(
            len(own) == len(wanted) and all(one.equals(two) for one, two in zip(own, wanted, strict=True))
            for own, wanted in zip(mine.recordings, expected.recordings, strict=True)
        )
        counts[WINDOWED] = Counts(same, 0, len(expected.recordings))
    return counts
