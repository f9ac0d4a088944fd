"""Constrained beam search: words that must occur in the output, in any order.

Source: transformers 4.56.2 `GenerationMixin._constrained_beam_search` and `ConstrainedBeamSearchScorer` (later releases
have none). The results are the same, in float32 and in its order of operations. Of equal ranks the candidate that was
found first comes first.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.callbacks import SearchCallback
from tightbeam.deploy.search.pool_search import PoolSearch
from tightbeam.deploy.search.step import OUT, Candidates, Step
from tightbeam.deploy.search.word_states import WordState

__all__ = ["ForcedWordsSearch"]

BANK = np.float32(100)
"""The worth of a token of progress next to log-probabilities."""


class ForcedWordsSearch(PoolSearch):
    """Continue each sample by its best sequences that have the words of ``force_words_ids``.

    A step's candidates are the best continuations, and each token that makes progress in a row's words. They are chosen
    in turn from the banks of equal progress, the furthest bank first. The search head's candidates may not have the
    tokens that make progress, so the search reads whole rows.
    """

    def __init__(self, step: Step, options: GenerationOptions, callback: SearchCallback) -> None:
        super().__init__(step, options, callback)
        self._known: dict[int, dict[tuple[int, ...], WordState]] = {}  # by a sample's number, of the rows of its step
        self._before = self._known  # of the step before

    def advance(self) -> None:
        candidates, prompted = self.run_decoder()
        cancelled = self.cancelled(prompted, None)
        forced, last = dict(self.forced()), self.lengths + 1 == self.max_lengths
        self._before = {place.number: self._known.get(place.number, {}) for place in self.places}
        self._known = {place.number: {} for place in self.places}
        tokens, scores, parents = (np.zeros((len(self.places), self.M), dtype) for dtype in (np.int64, np.float32, int))
        ends = self.ends(candidates.tokens, candidates.beams, prompted)
        for index in np.flatnonzero(~prompted).tolist():
            only = forced.get(index, ())
            own, ended = Candidates(*candidates.of(index)), ends[index]
            if only:
                own = Candidates(*self.forced_of(index, only))
                ended = self.ends_of(index, own.tokens, own.beams)
            self._finish(index, own, ended)
            going = np.argsort(ended, kind="stable")[: self.M]
            lowered = np.where(ended[going], OUT, np.float32(0))  # of rows that go on for want of others
            chosen = Candidates(own.scores[going] + lowered, own.beams[going], own.tokens[going])
            chosen = self._with_progress(index, chosen, candidates)
            tokens[index], scores[index], parents[index] = chosen.tokens, chosen.scores, chosen.beams
            last[index] |= bool(self.places[index].endings.by_row) and (chosen.scores <= OUT).all()  # none goes on
            new = int(self.lengths[index]) + 1 - self.places[index].P
            self.places[index].state[0].settle(float(own.scores[0]), new)
        self.scores, self.parents = scores, parents
        self.feed_prompts(prompted, tokens, scores, parents, candidates.tokens)
        for index in np.flatnonzero(last & ~prompted).tolist():
            self._offer_running(index, tokens[index])
        self.write(tokens, last)
        self.remove_final(last, cancelled)

    def _row(self, index: int, beam: int) -> list[int]:
        """The tokens of a row."""
        row: list[int] = self.step.history[index, beam, : self.lengths[index]].tolist()
        return row

    def _state(self, index: int, row: list[int]) -> WordState:
        """The state after a row, made of the state of its beginning if the last step had it."""
        place, tokens = self.places[index], tuple(row)
        now, before = self._known[place.number], self._before[place.number]
        if tokens not in now:
            state, beginning = before.get(tokens), before.get(tokens[:-1])
            if state is None and beginning is not None:
                state = beginning.then(row[-1])
            now[tokens] = state or WordState.of_row(place.options.force_words_ids, row)
        return now[tokens]

    def _finish(self, index: int, own: Candidates, ended: Bools) -> None:
        """Put the candidates [C] of a sample that end, among the first M, into its pool if they have all words."""
        place = self.places[index]
        for rank in np.flatnonzero(ended[: self.M]).tolist():
            row, token = self._row(index, own.beams[rank]), int(own.tokens[rank])
            by_token = token in place.options.eos_token_ids
            if self._state(index, row if by_token else [*row, token]).complete:
                ended_row = self.ended(index, np.array(row), token)
                place.state[0].add(float(own.scores[rank]), ended_row, len(row) + 1 - place.P)

    def _going_on(self, index: int, beam: int, tokens: list[int]) -> list[int]:
        """The tokens that do not end the row that they make progress in."""
        if not self.places[index].endings.by_row:
            return tokens
        ended = self.ends_of(index, np.array(tokens), np.full(len(tokens), beam))
        return [token for token, over in zip(tokens, ended.tolist(), strict=True) if not over]

    def _with_progress(self, index: int, best: Candidates, candidates: Candidates) -> Candidates:
        """Choose M among the ``best`` [M] continuations of a sample and the continuations that make progress."""
        rows = [tuple(self._row(index, beam)) for beam in range(self.M)]
        found = list(zip(best.beams.tolist(), best.tokens.tolist(), strict=True))
        banks = [self._state(index, [*rows[beam], token]).bank for beam, token in found]
        seen = {(rows[beam], token) for beam, token in found}
        beams, tokens, scores = [best.beams], [best.tokens], [best.scores]
        for beam, row in enumerate(rows):
            state = self._state(index, list(row))
            following = [] if state.complete else self._going_on(index, beam, state.following())
            after = [
                (token, bank)
                for token, bank in zip(following, state.banks_after(following), strict=True)
                if (row, token) not in seen
            ]
            if not after:
                continue
            seen.update((row, token) for token, _ in after)
            new = np.array([token for token, _ in after])
            total = self.next_scores(candidates, index, beam) + self.scores[index, beam]
            banks.extend(bank for _, bank in after)
            beams.append(np.full(len(new), beam))
            tokens.append(new)
            scores.append(total[new])
        whole = np.concatenate(scores).astype(np.float32)
        order = np.argsort(-(np.array(banks, np.float32) * BANK + whole), kind="stable")
        ordered, places = np.array(banks)[order], np.arange(len(order))
        begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        turns = places - np.maximum.accumulate(np.where(begins, places, 0))
        chosen = order[np.argsort(turns, kind="stable")][: self.M]
        return Candidates(whole[chosen], np.concatenate(beams)[chosen], np.concatenate(tokens)[chosen])

    def _offer_running(self, index: int, tokens: Ints) -> None:
        """Offer the beams that end with ``tokens`` int64 [M] at a sample's last length: the beams with all words, and
        the others too if these are fewer than are returned."""
        place = self.places[index]
        pool = place.state[0]
        if pool.done:
            return
        rows = [[*self._row(index, self.parents[index, beam]), token] for beam, token in enumerate(tokens.tolist())]
        complete = [self._state(index, row).complete for row in rows]
        kinds = (True,) if sum(complete) >= place.options.num_return_sequences else (True, False)
        for kind in kinds:
            for beam, row in enumerate(rows):
                if complete[beam] is kind:
                    pool.add(float(self.scores[index, beam]), np.array(row), len(row) - place.P)
