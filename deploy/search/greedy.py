"""Greedy search: the best next token at every position.

Source: transformers 5.24 `GenerationMixin._sample` with do_sample=False.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch

__all__ = ["GreedySearch"]


class GreedySearch(BatchSearch[None]):
    """Continue each sample by the best token at each position.

    A sample is removed with the token that ends it: `_sample` only pads it after that. There are no scores.
    """

    def new_state(self, options: GenerationOptions, beginning: int) -> None:
        return None

    def advance(self) -> None:
        candidates, prompted = self.run_step()
        tokens = candidates.tokens[:, :1].copy()  # [B, 1]
        self.feed_prompts(prompted, tokens, self.scores, self.parents, candidates.tokens)
        self.observe(tokens, prompted)
        cancelled = self.cancelled(prompted, tokens[:, 0])
        last = self.lengths + 1 == self.max_lengths
        ends = self.ends(tokens, np.zeros_like(tokens), prompted)[:, 0] | last
        for index in np.flatnonzero(ends & ~cancelled).tolist():
            self.report_rows(index, tokens[index], self.lengths[index, None] + 1 - self.places[index].P)
        self.write(tokens, last)
        self.remove(ends | cancelled)
