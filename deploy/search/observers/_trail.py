"""The way of a sequence through the rows of a search, which observers of single tokens follow back from its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.search.observers._observer import Observer, SampleStep

__all__ = ["End", "Trail"]


@dataclass(frozen=True)
class End:
    """The last token of a sequence: its step, the row that it continued, and its score."""

    step: int
    row: int
    score: float


class Trail(Observer):
    """The base of observers that follow the sequences of one sample: which row each of its rows continued."""

    def __init__(self) -> None:
        self._parents: list[list[int]] = []  # by step: the row that each row continued
        self._scores: list[list[float]] = []  # by step: the score of the token that it got
        self._steps = 0
        self._running: list[End | None] = []  # the newest token of each row
        self._finished: list[End | None] = []  # the last token of each finished sequence of beam search

    def score(self, row: int, token: int) -> float:
        """Return the score of a token of this step behind the tokens of a row, if the observer has scores."""
        return 0.0

    def on_step(self, step: SampleStep) -> None:
        self._steps += 1

    def on_finished(self, kept: Bools, old: Ints, beams: Ints, tokens: Ints) -> None:
        before = self._finished or [None] * len(kept)
        each = zip(kept.tolist(), old.tolist(), beams.tolist(), tokens.tolist(), strict=True)
        self._finished = [before[place] if stays else self._end(row, token) for stays, place, row, token in each]

    def on_tokens(self, parents: Ints, tokens: Ints, ended: Bools) -> None:
        before = self._running or [None] * len(parents)
        each = zip(parents.tolist(), tokens.tolist(), ended.tolist(), before, strict=True)
        self._running = [old if over else self._end(row, token) for row, token, over, old in each]
        self._parents.append([0 if end is None else end.row for end in self._running])
        self._scores.append([0 if end is None else end.score for end in self._running])

    def running(self) -> Sequence[End | None]:
        """Return the ends of the rows; None is a row without tokens."""
        return self._running

    def finished(self, count: int) -> Sequence[End | None]:
        """Return the ends of the best finished sequences of beam search."""
        return self._finished[:count] or [None] * count

    def way(self, end: End | None) -> Iterator[tuple[int, int, float]]:
        """Yield the step, the row that was continued, and the score of each token of a sequence, the last one first."""
        if end is None:
            return
        row, score = end.row, end.score
        for step in range(end.step, -1, -1):
            yield step, row, score
            if step:
                row, score = self._parents[step - 1][row], self._scores[step - 1][row]

    def _end(self, row: int, token: int) -> End:
        return End(self._steps - 1, row, self.score(row, token))
