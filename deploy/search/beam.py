"""Beam search: the M best sequences of each sample side by side.

Source: transformers 5.24 `GenerationMixin._beam_search`. The results are the same, in float32 and in its order of
operations. Scores of excluded candidates are lowered by 1e9, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch, with_reasons
from tightbeam.deploy.search.rows import best
from tightbeam.deploy.search.step import OUT, Candidates, SearchResult, only_first_beams

__all__ = ["BeamSearch", "FinishedBeams"]

IN = np.float32(0)


@dataclass
class FinishedBeams:
    """The pool of finished sequences of a sample.

    Attributes
    ----------
    sequences : int64 [M, max_length] or None
        Best first; None before a sequence has finished.
    """

    sequences: Ints | None = None


class BeamSearch(BatchSearch[FinishedBeams]):
    """Continue each sample by its ``num_return_sequences`` best sequences.

    Each step takes the C best continuations of a sample. A continuation ends by what `ENDINGS` list, or at
    ``max_length``. If it is among the first M, it is offered to the sample's pool of finished sequences. The M best of
    the others run on. A sample is removed when its pool is final; the batch of `_beam_search` stops as a whole. Rows
    shorter than the longest returned one are filled with ``options.fill_token_id``.

    A pool has the M best finished sequences, best first. An empty place has the score -1e9.

    Finality of a pool. A sample is hopeless when its best running beam cannot beat its worst finished sequence; it
    stays hopeless. `_beam_search` lowers by 1e9 the offers to a hopeless sample, and the offers to a full pool under
    early_stopping=True. Scores are sums of log-probabilities, at most 0, so such an offer is at most -1e9 in float32. A
    pool holds nothing lower, since it begins with -1e9 and only improves, and of equal scores the older wins: the offer
    is rejected. For the same reason a place is taken if its score is above -1e9. The batch of `_beam_search` ends when
    every sample is hopeless, or all pools are full under early_stopping=True, hence not before each pool is final by
    the same rule. Later steps change nothing, not even the padding, which depends on the returned sequences alone.

    Attributes
    ----------
    pool_scores : float32 [B, M]
        Scores of the finished sequences.
    pool_lengths : int64 [B, M]
        New tokens of the finished sequences.
    """

    pool_scores: Floats
    pool_lengths: Ints

    def first_scores(self) -> Floats:
        return only_first_beams(self.M)

    def first_rows(self) -> dict[str, Array]:
        return {"pool_scores": np.full((1, self.M), OUT), "pool_lengths": np.zeros((1, self.M), np.int64)}

    def new_state(self, options: GenerationOptions, beginning: int) -> FinishedBeams:
        return FinishedBeams()

    def _refresh(self) -> None:
        super()._refresh()
        self._counted = max((place.options.drawn for place in self.places), default=0)
        self._stops_full = np.array([place.options.early_stopping is True for place in self.places], np.bool_)
        self._divisors = [_divisors(place.options.length_penalty, place.options.max_length) for place in self.places]
        self._bounded = [  # by the longest length instead of the present one
            place.options.early_stopping == "never" and place.options.length_penalty > 0 for place in self.places
        ]

    def advance(self) -> None:
        found, prompted = self.run_step()
        candidates = found.first(self._counted)
        cancelled = self.cancelled(prompted, None)
        last = self.lengths + 1 == self.max_lengths  # [B]
        ends = self.ends(candidates.tokens, candidates.beams, prompted) | last[:, None]  # [B, C]
        new = self.lengths + 1 - self.beginnings  # [B], new tokens with the one of this step
        self._offer(candidates, ends, new)

        chosen = _open_candidates(candidates, ends, self.M)
        self.scores, self.parents = chosen.scores, chosen.beams
        self.feed_prompts(prompted, chosen.tokens, self.scores, self.parents, candidates.tokens)
        self.observe(chosen.tokens, prompted)
        self.write(chosen.tokens, last)
        final = ends.all(axis=1) | self.final(new)  # if all candidates end, `_beam_search` stops
        for index in np.flatnonzero(final & ~cancelled).tolist():
            self.callback.on_finished(self.places[index].number, self._result(index))
        self.remove(final | cancelled)

    def _offer(self, candidates: Candidates, ends: Bools, new: Ints) -> None:
        """Offer the candidates that end, bool [B, C], to the pools, as sequences of ``new`` [B] new tokens."""
        M = self.M
        taken = ends[:, :M]  # the candidates after the first M are only there to keep M beams running
        if not taken.any():
            return
        scores = candidates.scores[:, :M] / self._divisor(new)  # [B, M]
        scores = scores + np.where(taken, IN, OUT)
        merged = np.concatenate([self.pool_scores, scores], axis=1)  # [B, 2 M]
        chosen = best(merged, M)  # [B, M]
        for index in np.flatnonzero((chosen != np.arange(M)).any(axis=1)).tolist():
            self._take(candidates, index, chosen[index], int(new[index]))
        self.pool_scores = merged[self.index, chosen]

    def _pool(self, index: int) -> Ints:
        """The finished sequences int64 [M, max_length] of a sample."""
        place = self.places[index]
        if place.state.sequences is None:
            pool = np.full((self.M, place.options.max_length), place.options.fill_token_id, np.int64)
            pool[:, : place.P] = self.step.history[index, 0, : place.P]
            place.state.sequences = pool
        return place.state.sequences

    def _take(self, candidates: Candidates, index: int, chosen: Ints, new: int) -> None:
        """Replace a pool's sequences by the ``chosen`` [M] of the M old ones and the M candidates."""
        place, pool, M = self.places[index], self._pool(index), self.M
        length = place.P + new - 1
        kept, old, came = chosen < M, np.minimum(chosen, M - 1), np.maximum(chosen - M, 0)  # [M]
        arrivals = np.full_like(pool, place.options.fill_token_id)
        beams, tokens = candidates.beams[index, came], candidates.tokens[index, came]
        arrivals[:, :length] = self.step.history[index, beams, :length]
        arrivals[:, length] = tokens
        place.state.sequences = np.where(kept[:, None], pool[old], arrivals)
        for observer in place.observers:
            observer.on_finished(kept, old, beams, tokens)
        self.pool_lengths[index] = np.where(kept, self.pool_lengths[index, old], new)

    def finished_rows(self, index: int) -> list[Ints]:
        sequences = self.places[index].state.sequences
        if sequences is None or self.pool_scores[index, 0] <= OUT:
            return []
        return [sequences[0, : self.places[index].P + int(self.pool_lengths[index, 0])]]

    def final(self, new: Ints) -> Bools:
        """Return bool [B], True for a sample whose pool is final.

        That is so when its best running beam, of ``new`` new tokens, cannot beat its worst finished sequence, or when
        its pool is full under early_stopping=True. The bound is exact only for "never"; otherwise it takes the present
        length for the final one, as `_beam_search` does.
        """
        if any(self._bounded):
            new = np.where(self._bounded, self.max_lengths - self.beginnings, new)
        worst = self.pool_scores[:, -1]  # [B]
        final: Bools = self.scores[:, 0] / self._divisor(new)[:, 0] <= worst
        return final | (self._stops_full & (worst > OUT))

    def _divisor(self, new: Ints) -> Floats:
        """The divisors float32 [B, 1] of the scores of ``new`` [B] new tokens."""
        divisors = [table[max(1, length)] for table, length in zip(self._divisors, new.tolist(), strict=True)]
        return np.array(divisors, np.float32)[:, None]

    def _result(self, index: int) -> SearchResult:
        """The first ``num_return_sequences`` sequences of a sample, cut to the longest of them."""
        place = self.places[index]
        count = place.options.num_return_sequences
        new = self.pool_lengths[index, :count]
        sequences = self._pool(index)[:count, : place.P + int(new.max())].copy()
        scores = self.pool_scores[index, :count].copy()
        result = with_reasons(SearchResult(sequences, scores, new_tokens=tuple(new.tolist())), place)
        for observer in place.observers:
            result = observer.add_finished(result)
        return result


def _open_candidates(candidates: Candidates, ends: Bools, count: int) -> Candidates:
    """Return the best candidates [B, count] in arrays of their own; candidates that end, bool [B, C], come last."""
    scores, beams, tokens = candidates.scores, candidates.beams, candidates.tokens
    if not ends.any():  # in order already
        return Candidates(scores[:, :count].copy(), beams[:, :count].copy(), tokens[:, :count].copy())
    scores = scores + np.where(ends, OUT, IN)
    order = best(scores, count)
    samples = np.arange(len(order))[:, None]
    return Candidates(scores[samples, order], beams[samples, order], tokens[samples, order])


@lru_cache(maxsize=32)
def _divisors(length_penalty: float, longest: int) -> Floats:
    """The divisor of a score by the number of new tokens, up to ``longest``; Python's power, as in `_beam_search`."""
    return np.array([1, *(length**length_penalty for length in range(1, longest + 1))], np.float32)
