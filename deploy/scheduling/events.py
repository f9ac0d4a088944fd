"""Events that a scheduler reports by sample number, and counts of its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tightbeam.deploy.search.callbacks import NullCallback, SearchCallback

__all__ = ["CallbackEvents", "NullEvents", "SchedulerEvents", "Work"]


class SchedulerEvents(SearchCallback, Protocol):
    """A `SearchCallback` that also learns which samples are about to be encoded."""

    def on_started(self, samples: Sequence[int]) -> None:
        """Receive the numbers of samples that are about to be encoded. They are lost if the process ends."""
        ...


class NullEvents(NullCallback):
    """The `SchedulerEvents` that ignores all events and cancels nothing."""

    def on_started(self, samples: Sequence[int]) -> None: ...


class CallbackEvents:
    """The `SchedulerEvents` that pass a search's events on to a `SearchCallback`."""

    def __init__(self, callback: SearchCallback) -> None:
        self.on_step, self.on_finished = callback.on_step, callback.on_finished

    def on_started(self, samples: Sequence[int]) -> None: ...


@dataclass
class Work:
    """Counts of the work that a scheduler has done.

    Attributes
    ----------
    prefills : int
        Runs of the encoder, or over prompts.
    samples : int
        Samples in these runs.
    steps : int
        Decoder steps.
    sample_steps : int
        Samples in the steps, summed over the steps.
    prefill_seconds, step_seconds : float
    """

    prefills: int = 0
    samples: int = 0
    steps: int = 0
    sample_steps: int = 0
    prefill_seconds: float = 0.0
    step_seconds: float = 0.0

    def take(self) -> Work:
        """Return the work since the last call, and reset the counts."""
        taken = Work(**vars(self))
        vars(self).update(vars(Work()))
        return taken
