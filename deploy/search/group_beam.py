"""Diverse beam search: groups of beams, each of which avoids the tokens that the groups before it have just chosen.

Source: transformers 4.56.2 `GenerationMixin._group_beam_search` (later releases have none) and
`HammingDiversityLogitsProcessor`; Vijayakumar et al. 2016 (1610.02424). The results are the same, in its order of
operations but for one sum: the penalty is taken off a candidate's score, not off its log-probability before that.

Exactness. A step ranks the candidates of each group by itself. The penalty lowers the scores of the tokens that the
groups before have chosen in this step, in each row of the group, and lowers no other. The operator returns more
candidates than a group needs, by as many as can be lowered, so the candidates that it needs are among them
(`GenerationOptions.candidates`).
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Ints
from tightbeam.deploy.search.pool_search import PoolSearch
from tightbeam.deploy.search.step import OUT, Candidates

__all__ = ["GroupBeamSearch"]


class GroupBeamSearch(PoolSearch):
    """Continue each sample by beam search in each of its groups of beams, and return the best sequences of all.

    The candidates [B, G C] of a step list one group after another; ``beams`` count from the first beam of the group.
    """

    def _refresh(self) -> None:
        super()._refresh()
        options = [place.options for place in self.places]
        self._penalties = np.array([[own.diversity_penalty] for own in options], np.float32)
        self._pads = np.array([[own.pad_token_id or 0] for own in options], np.int64)
        self._repetition = np.float32(options[0].repetition_penalty if options else 1)

    def advance(self) -> None:
        candidates, prompted = self.run_decoder()
        cancelled = self.cancelled(prompted, None)
        new, last = (self.lengths + 1 - self.beginnings).tolist(), self.lengths + 1 == self.max_lengths
        forced = dict(self.forced())
        tokens, scores, parents = (np.zeros((len(self.places), self.M), dtype) for dtype in (np.int64, np.float32, int))
        for group in range(self.groups):
            own = slice(group * self.size, (group + 1) * self.size)
            found = self._of_group(candidates, group, forced, tokens[:, : own.start])
            ends = self.ends(found.tokens, found.beams + own.start, prompted)
            order = np.argsort(ends, axis=1, kind="stable")[:, : self.size]
            done = np.array([[place.state[group].done] for place in self.places])
            tokens[:, own] = np.where(done, self._pads, found.tokens[self.index, order])
            ended = np.where(ends[self.index, order], OUT, np.float32(0))  # of rows that go on for want of others
            scores[:, own] = np.where(done, np.float32(0), found.scores[self.index, order] + ended)
            parents[:, own] = np.where(done, 0, found.beams[self.index, order]) + own.start
            self._finish(found, group, ends & ~done, new)
        self.scores, self.parents = scores, parents
        self.feed_prompts(prompted, tokens, scores, parents, candidates.tokens)
        for index in np.flatnonzero(last & ~prompted).tolist():
            self._offer_running(index, tokens[index], new[index])
        self.write(tokens, last)
        self.remove_final(last, cancelled)

    def _of_group(
        self, candidates: Candidates, group: int, forced: dict[int, tuple[int, ...]], before: Ints
    ) -> Candidates:
        """The candidates [B, C] of a group, best first, after the penalty for the tokens ``before`` int64 [B, X] of the
        groups before it. Forced tokens take their place, without a penalty."""

        def own(array: Array) -> Array:
            whole: Array = array.reshape(len(array), self.groups, -1)[:, group]
            return whole.copy() if forced else whole

        first = group * self.size
        found = Candidates(own(candidates.scores), own(candidates.beams), own(candidates.tokens))
        found = self._penalised(found, before, first) if group else found
        for index, only in forced.items():
            found.put(index, self.forced_of(index, only, slice(first, first + self.size)))
        return found

    def _penalised(self, found: Candidates, before: Ints, first: int) -> Candidates:
        """The candidates [B, C] with the penalty for tokens ``before`` int64 [B, X], best first; of equal scores the
        lower (beam, token) comes first. The repetition penalty multiplies the diversity penalty, too."""
        counts = (found.tokens[:, :, None] == before[:, None]).sum(axis=2, dtype=np.float32)  # [B, C]
        if not counts.any():
            return found
        lowered = counts * self._penalties
        if self._repetition != 1:
            lowered[self._repeats(found, first)] *= self._repetition
        scores = found.scores - lowered
        order = np.lexsort((found.tokens, found.beams, -scores), axis=1)
        at = self.index, order
        return Candidates(scores[at], found.beams[at], found.tokens[at])

    def _repeats(self, found: Candidates, first: int) -> Bools:
        """Return bool [B, C], True for a candidate whose token is in its row already."""
        T = int(self.lengths.max())
        rows = self.step.history[self.index, found.beams + first, :T]  # [B, C, T]
        counted = np.arange(T) < self.lengths[:, None, None]
        repeats: Bools = ((rows == found.tokens[:, :, None]) & counted).any(axis=2)
        return repeats

    def _finish(self, found: Candidates, group: int, ends: Bools, new: list[int]) -> None:
        """Put the candidates that end, bool [B, C], into the group's pools, and settle these."""
        for index, rank in zip(*np.nonzero(ends[:, : self.size]), strict=True):
            row = self.step.history[index, group * self.size + found.beams[index, rank], : self.lengths[index]]
            ended = self.ended(index, row, int(found.tokens[index, rank]))
            self.places[index].state[group].add(float(found.scores[index, rank]), ended, new[index])
        for index, place in enumerate(self.places):
            if not place.state[group].done and self.lengths[index] >= place.P:
                place.state[group].settle(float(found.scores[index, 0]), new[index])

    def _offer_running(self, index: int, tokens: Ints, new: int) -> None:
        """Offer the beams of a sample that has its last length, whose last ones are ``tokens`` int64 [M]."""
        for beam, token in enumerate(tokens):
            pool = self.places[index].state[beam // self.size]
            if not pool.done:
                row = self.step.history[index, self.parents[index, beam], : self.lengths[index]]
                pool.add(float(self.scores[index, beam]), np.append(row, token), new)
