"""Base of the searches that keep finished sequences in pools, one for each group of beams."""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch, with_reasons
from tightbeam.deploy.search.callbacks import SearchCallback
from tightbeam.deploy.search.pool import Pool, best_of_pools
from tightbeam.deploy.search.step import Step, only_first_beams

__all__ = ["PoolSearch"]


class PoolSearch(BatchSearch[list[Pool]]):
    """Base of the searches whose samples have a `Pool` for each group of beams.

    Parameters
    ----------
    step : Step
    options : GenerationOptions
        The options of any sample of the batch.
    callback : SearchCallback

    Attributes
    ----------
    groups : int
        G, groups of beams; 1 if beams have no groups.
    size : int
        Beams of a group.
    """

    def __init__(self, step: Step, options: GenerationOptions, callback: SearchCallback) -> None:
        self.groups = options.num_beam_groups
        self.size = options.num_beams // self.groups
        super().__init__(step, options, callback)

    def first_scores(self) -> Floats:
        return only_first_beams(self.M, self.size)

    def new_state(self, options: GenerationOptions, beginning: int) -> list[Pool]:
        return [Pool(self.size, options, beginning) for _ in range(self.groups)]

    def running_rows(self, index: int) -> list[int]:
        pools = self.places[index].state
        return [beam for beam in range(self.M) if not pools[beam // self.size].done]

    def finished_rows(self, index: int) -> list[Ints]:
        found = [found for pool in self.places[index].state for found in pool.found]
        best = max((score for score, _ in found), default=0)
        return [tokens for score, tokens in found if score == best]

    def ended(self, index: int, row: Ints, token: int) -> Ints:
        """Return the sequence of a sample's row int64 [T] that a token ends. As in transformers, an end token stands
        for all: the first one."""
        ends = self.places[index].options.eos_token_ids
        return np.append(row, ends[0] if token in ends else token)

    def remove_final(self, last: Bools, cancelled: Bools) -> None:
        """Report the samples that are final, and remove them and the ``cancelled`` ones, bool [B].

        A sample is final when all its pools are, or at its ``last`` length, bool [B].
        """
        final = last | np.array([all(pool.done for pool in place.state) for place in self.places])
        for index in np.flatnonzero(final & ~cancelled).tolist():
            place = self.places[index]
            result = best_of_pools(place.state, place.options, place.P)
            self.callback.on_finished(place.number, with_reasons(result, place))
        self.remove(final | cancelled)
