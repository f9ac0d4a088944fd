"""Events of a scheduler, by sample number, and the work that it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tightbeam.deploy.arrays import Ints

__all__ = ["NullEvents", "SchedulerEvents", "Work"]


class SchedulerEvents(Protocol):
    """Receiver of what happens to samples during a turn."""

    def on_started(self, samples: Sequence[int]) -> None:
        """Receive the numbers of samples that are about to be encoded. They are lost if their batch fails."""
        ...

    def on_tokens(self, samples: Ints, tokens: Ints) -> None:
        """Receive the tokens of one step of greedy search. Read both arrays during the call only.

        Parameters
        ----------
        samples : int64 [B']
            Numbers of the samples.
        tokens : int64 [B']
            The token that each of them got.
        """
        ...


class NullEvents:
    """The `SchedulerEvents` that ignores them."""

    def on_started(self, samples: Sequence[int]) -> None: ...

    def on_tokens(self, samples: Ints, tokens: Ints) -> None: ...


@dataclass
class Work:
    """Work that was done.

    Attributes
    ----------
    prefills : int
        Runs of the encoder, or over prompts.
    samples : int
        Samples in them.
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
        """Return the work since the last call."""
        taken = Work(**vars(self))
        vars(self).update(vars(Work()))
        return taken
