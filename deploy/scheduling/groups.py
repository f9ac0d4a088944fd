"""Samples of several groups: each group has a batch of its own, and the batches take their steps in turn."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.scheduling.events import SchedulerEvents, Work
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, FinishedSample, Scheduler

__all__ = ["GroupScheduler"]


@dataclass(eq=False)
class _Group:
    """A group's scheduler, and the numbers of its samples that have no result."""

    scheduler: Scheduler
    samples: set[int] = field(default_factory=set)


class GroupScheduler:
    """Runs samples of any settings as they come. docs/design.md has the rule by which groups take turns.

    Parameters
    ----------
    runtime : Runtime
        Runs the two graphs. Where its batches cannot be joined, one whole batch is run after the other.
    max_rows : int
        The most rows (samples x beams) that take steps, of all groups together.
    lock : context manager, optional
        Held while the runtime is in use.
    events : SchedulerEvents, optional
        Receives what happens to samples.

    Attributes
    ----------
    work : Work
        The work that was done.
    """

    def __init__(
        self,
        runtime: Runtime,
        max_rows: int,
        lock: AbstractContextManager[Any] | None = None,
        events: SchedulerEvents | None = None,
    ) -> None:
        self.work = Work()
        self._runtime, self._lock, self._events, self._max_rows = runtime, lock, events, max_rows
        joining = runtime.joining()
        self._joins = joining is not None
        self._most_steps = 1 if joining is None else joining.steps_in_turn
        self._turn: tuple[object, int] = None, 0  # the group that ran last, and its steps in this turn
        self._groups: dict[object, _Group] = {}  # in the order of their turns

    @property
    def active(self) -> bool:
        """True while a turn has something to do."""
        return any(group.scheduler.active for group in self._groups.values())

    @property
    def waiting(self) -> int:
        """Samples that are not encoded yet."""
        return sum(group.scheduler.waiting for group in self._groups.values())

    @property
    def wants_more(self) -> bool:
        """True where another sample should come before the next turn: there is none, or no whole batch is full."""
        if self._joins or any(group.scheduler.running for group in self._groups.values()):
            return not self.active
        return all(group.scheduler.wants_more for group in self._groups.values())

    @property
    def rows(self) -> int:
        """Rows that have places, of all groups."""
        return sum(group.scheduler.running_rows for group in self._groups.values())

    def add(self, sample: Sample) -> None:
        """Add a sample, which is run in later turns. Between groups, lower numbers are older."""
        key = replace(sample, alone=False).group
        if key not in self._groups:
            self._close_idle()
            places = max(1, self._max_rows // sample.options.num_beams)
            scheduler = Scheduler(self._runtime, places, self._lock, events=self._events, work=self.work)
            self._groups[key] = _Group(scheduler)
        self._groups[key].samples.add(sample.number)
        self._groups[key].scheduler.add(sample)

    def cancel(self, number: int) -> None:
        """Drop a sample, which has no result then. See `Scheduler.cancel`."""
        for group in self._groups.values():
            if number in group.samples:
                group.scheduler.cancel(number)
                group.samples.remove(number)

    def turn(self) -> list[FinishedSample | FailedSample]:
        """Let the next group take its turn, and return the samples that have ended.

        Samples of a batch that fails run again, each alone. One that fails alone ends with its error.
        """
        key, room = self._next()
        if key is None:
            return []
        group, steps = self._groups[key], self._turn[1] + 1 if key == self._turn[0] else 1
        self._turn = key, steps
        if steps >= self._most_steps:
            self._groups[key] = self._groups.pop(key)  # the last of the next round
            self._turn = None, 0
        try:
            ended = group.scheduler.turn(room)
        except Exception as error:  # a defect; samples that ran alone do not wait again
            lost = [number for number in group.samples if not group.scheduler.is_waiting(number)]
            ended = [FailedSample(number, error) for number in lost]
        group.samples.difference_update(each.number for each in ended)
        return ended

    def close(self) -> None:
        """Return the buffers to the runtime. Samples that are in a batch are lost."""
        for group in self._groups.values():
            group.scheduler.close()

    def _close_idle(self) -> None:
        for key, group in list(self._groups.items()):
            if not group.scheduler.active:
                group.scheduler.close()
                del self._groups[key]

    def _next(self) -> tuple[object, int]:
        """The group whose turn it is, and the most samples that may get a place in it. None where there is none."""
        for key in self._groups if self._joins else self._whole():
            scheduler = self._groups[key].scheduler
            room = self._room(scheduler)
            if scheduler.running or room:
                return key, room
        return None, 0

    def _whole(self) -> list[object]:
        """The group whose whole batch runs, or else that of the oldest sample."""
        running = [key for key, group in self._groups.items() if group.scheduler.running]
        first = {key: found for key, group in self._groups.items() if (found := group.scheduler.next) is not None}
        return running or sorted(first, key=lambda key: first[key].number)[:1]

    def _room(self, scheduler: Scheduler) -> int:
        """Samples that may get a place: rows are free, and the oldest waiting sample of all leaves them over."""
        own = scheduler.next
        if own is None:
            return 0
        free, oldest = self._max_rows - self.rows, own
        for group in self._groups.values():
            first = group.scheduler.next
            if first is not None and first.number < oldest.number:
                oldest = first
        if oldest is not own:
            free -= oldest.options.num_beams
        return max(0, free // own.options.num_beams)
