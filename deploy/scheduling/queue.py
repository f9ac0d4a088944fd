"""The queue of waiting samples. The oldest is encoded next, with samples of similar length behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from itertools import islice

from tightbeam.deploy.scheduling.sample import Sample

__all__ = ["WaitingSamples"]

WINDOW = 64
"""The most samples behind the oldest one that may be encoded with it. In a larger window samples may wait longer."""


class WaitingSamples:
    """Waiting samples in the order in which they came. Taken samples are remembered until they end."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._taken: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def __contains__(self, number: int) -> bool:
        """True for the number of a sample that waits."""
        return any(sample.number == number for sample in self._samples)

    def add(self, sample: Sample) -> None:
        """Add a sample behind the others."""
        self._samples.append(sample)

    def oldest(self) -> Sample:
        """The sample that has waited longest."""
        return self._samples[0]

    def near(self) -> list[Sample]:
        """The oldest sample, and the samples of its batch key within the window."""
        key = self._samples[0].batch_key
        return [sample for sample in islice(self._samples, 1 + WINDOW) if sample.batch_key == key]

    def remove(self, number: int) -> bool:
        """Remove a sample by its number. Returns False if there is none."""
        found = next((sample for sample in self._samples if sample.number == number), None)
        if found is not None:
            self._samples.remove(found)
        return found is not None

    def take(self, *, positions: int, samples: int) -> list[Sample]:
        """Remove and return the samples to encode together, in the order in which they came.

        They are the oldest sample, and the samples of its batch key within the window with the nearest lengths.

        Parameters
        ----------
        positions : int
            The most source positions of a padded batch of several samples.
        samples : int
            The most samples.
        """
        oldest, *near = self.near()
        if oldest.has_features:  # padding would change the encoder's output
            near = [sample for sample in near if sample.source.shape == oldest.source.shape]
        near = [sample for sample in near if sample.kept is None and oldest.kept is None]  # which is encoded alone
        near.sort(key=lambda sample: abs(sample.width - oldest.width))  # stable: the older one of equals
        chosen, widest = [oldest], oldest.width
        for sample in near:
            wider = max(widest, sample.width)
            if len(chosen) == samples or (len(chosen) + 1) * wider > positions:
                break
            chosen.append(sample)
            widest = wider
        taken = {id(sample) for sample in chosen}
        chosen = [sample for sample in islice(self._samples, 1 + WINDOW) if id(sample) in taken]
        others = [sample for sample in islice(self._samples, 1 + WINDOW) if id(sample) not in taken]
        for _ in range(len(others) + len(chosen)):
            self._samples.popleft()
        self._samples.extendleft(reversed(others))
        self._taken |= {sample.number: sample for sample in chosen}
        return chosen

    def forget(self, number: int) -> None:
        """Forget a sample that was taken and has ended."""
        self._taken.pop(number, None)

    def return_taken(self, dropped: Collection[int] = ()) -> list[Sample]:
        """Put the taken samples back to the front after a failure of their batch. Each will run alone.

        Parameters
        ----------
        dropped : collection of int
            Numbers of samples that are not put back.

        Returns
        -------
        list of Sample
            The samples that already ran alone. They are not put back.
        """
        taken = [sample for number, sample in self._taken.items() if number not in dropped]
        self._taken.clear()
        self._samples.extendleft(replace(sample, alone=True) for sample in reversed(taken) if not sample.alone)
        return [sample for sample in taken if sample.alone]
