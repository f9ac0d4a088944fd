"""Greedy search: the best next token at every position.

Source: transformers 5.23 `GenerationMixin._sample` with do_sample=False.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch, scored_rows
from tightbeam.deploy.search.step import SearchResult

__all__ = ["GreedySearch"]


class GreedySearch(BatchSearch):
    """Continue each sample by the best token at each position.

    A sample is removed with its end-of-sequence token: `_sample` only pads it after that. There are no scores.
    """

    def filler(self, options: GenerationOptions) -> int:
        return options.pad_token_id or 0

    def advance(self) -> None:
        candidates, prompted = self.run_step()
        tokens = candidates.tokens[:, :1].copy()  # [B, 1]
        self.begin_trails(candidates, prompted)
        self.feed_prompts(prompted, tokens, self.scores, self.parents, candidates.tokens)
        self.measure(prompted, tokens, self.parents)
        cancelled = self.cancelled(prompted, tokens[:, 0])
        last = self.lengths + 1 == self.max_lengths
        # Without a pad token there is no end-of-sequence token, and every row runs to max_length.
        ends = (self.is_end(tokens)[:, 0] & ~prompted) | last
        self.advance_trails(tokens, prompted)
        for index in np.flatnonzero(ends & ~cancelled).tolist():
            before = self.step.history[index, :, : self.lengths[index]]  # [1, T]
            sequences = np.concatenate([before, tokens[index : index + 1]], axis=1)
            place = self.places[index]
            found = SearchResult(sequences, None, scored_rows(place), self.confidence(index))
            self.callback.on_finished(place.number, found)
        self.write(tokens, last)
        self.remove(ends | cancelled)
