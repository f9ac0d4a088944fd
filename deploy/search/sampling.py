"""Sampling: each next token is drawn from the model's distribution, as the settings warp it.

Source: transformers 5.24 `GenerationMixin._sample` with do_sample=True. The distribution is the same; the draw is from
a stream of random numbers that each returned sequence has to itself (`Sampling.uniforms`).
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.errors import NonFiniteError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch
from tightbeam.deploy.search.draws import NONE_LEFT, drawn, drawn_from_row, keyed_settings, settings_of
from tightbeam.deploy.search.step import Candidates
from tightbeam.deploy.search.token_scores import RowScores
from tightbeam.deploy.search.warpers import Warpers, forced_weights, kept_scores, row_weights, warped_scores

__all__ = ["SampleSearch"]


class SampleSearch(BatchSearch[Floats]):
    """Continue each of a sample's M rows by a token that is drawn.

    The rows are the returned sequences. They share the source, and nothing else: a row never continues another. A row
    that has ended is padded until all rows of its sample have; then the sample is removed. There are no scores.

    Attributes
    ----------
    ended : bool [B, M]
        Rows that have ended.
    new : int64 [B, M]
        New tokens of each row.
    """

    ended: Bools
    new: Ints

    def new_state(self, options: GenerationOptions, beginning: int) -> Floats:
        """The random numbers float64 [M, new tokens] of a sample."""
        keyed, count = keyed_settings(options), options.max_length - beginning
        return np.stack([keyed.uniforms(sequence, count) for sequence in range(self.M)])

    def first_rows(self) -> dict[str, Array]:
        return {"ended": np.zeros((1, self.M), np.bool_), "new": np.zeros((1, self.M), np.int64)}

    def _refresh(self) -> None:
        super()._refresh()
        self._warpers = Warpers([settings_of(place.options) for place in self.places])

    def advance(self) -> None:
        candidates, prompted = self.run_decoder()
        tokens = self._choose(candidates, prompted)  # [B, M]
        self.observe(tokens, prompted, self.ended)
        self.feed_prompts(prompted, tokens, self.scores, self.parents, candidates.tokens)
        cancelled = self.cancelled(prompted, tokens[:, 0] if self.M == 1 else None)
        last = self.lengths + 1 == self.max_lengths
        self.new += ~self.ended & ~prompted[:, None]
        self.ended |= self.ends(tokens, np.arange(self.M) + np.zeros_like(tokens), prompted)
        finished = self.ended.all(axis=1) | last
        for index in np.flatnonzero(finished & ~cancelled).tolist():
            self.report_rows(index, tokens[index], self.new[index])
        self.write(tokens, last)
        self.remove(finished | cancelled)

    def _choose(self, candidates: Candidates, prompted: Bools) -> Ints:
        """Draw the next tokens int64 [B, M]; the tokens of a sample in its decoder prompt do not count."""
        self._only = {(index, row): only for index, only in self.forced() for row in range(self.M)}
        free = ~prompted
        free[[index for index, _ in self._only]] = False
        if self.places[0].options.samples_candidates:
            for index in self.trie.without_candidates(candidates.scores, ~free):
                free[index] = not self._continues(index, 0)
            tokens = self._among_candidates(candidates, free)
        else:
            tokens = np.array([place.options.pad_token_id or 0 for place in self.places])[:, None].repeat(self.M, 1)
            for index, row in zip(*np.nonzero(free[:, None] & ~self.ended), strict=True):
                tokens[index, row] = self._from_row(candidates, int(index), int(row))
        for (index, row), only in self._only.items():
            if not self.ended[index, row]:
                weights = forced_weights(len(only), settings_of(self.places[index].options))
                tokens[index, row] = drawn(np.array([only]), weights[None], np.array([self._uniforms(index, row)]))[0]
        return tokens

    def _continues(self, index: int, row: int) -> bool:
        """True if a row goes on by tokens that its trie forces, which are kept in ``_only``."""
        continued = self.last_resort(index, [row])
        if continued is not None:
            self._only[index, row] = tuple(continued[0].tolist())
        return continued is not None

    def _among_candidates(self, candidates: Candidates, free: Bools) -> Ints:
        """Draw tokens int64 [B, 1] among the candidates. If more tokens than these equal the last one that is kept, a
        whole row is read, if the step has whole rows."""
        self._check(candidates.scores[:, 0], free)
        self._from_rows = set()
        C, top_k = candidates.scores.shape[1], self._warpers.top_k[:, 0]
        numbers = np.array([self._uniforms(index, 0) for index in range(len(self.places))])
        scores = np.where(free[:, None], candidates.scores, np.float32(0))
        tokens = drawn(candidates.tokens, self._warpers.weights(scores), numbers)
        if candidates.rows is not None and self.places[0].options.vocab_size > C:
            tied = candidates.scores[:, -1] >= candidates.scores[self.index[:, 0], np.minimum(top_k, C) - 1]
            tied &= np.isfinite(candidates.scores[:, -1])  # else all tokens that may come are among the candidates
            self._from_rows = set(np.flatnonzero(tied & free).tolist())
            for index in self._from_rows:
                tokens[index] = self._from_row(candidates, index, 0)
        return tokens[:, None]

    def _from_row(self, candidates: Candidates, index: int, row: int) -> int:
        """Draw a token from all scores of a row."""
        scores = self.row_scores(candidates, index, row)
        place = self.places[index]
        best = float(candidates.scores[index, 0])
        token = drawn_from_row(scores, settings_of(place.options), self._uniforms(index, row), best)
        if token < 0:
            if self._continues(index, row):
                return token
            raise NonFiniteError(NONE_LEFT)
        return token

    def possible_scores(self, candidates: Candidates, index: int, row: int) -> Floats:
        return kept_scores(self.next_scores(candidates, index, row), settings_of(self.places[index].options))

    def chosen_by(self, candidates: Candidates, index: int, row: int) -> RowScores:
        options = self.places[index].options
        sampling, scoring = settings_of(options), options.scoring
        assert scoring is not None
        tokens: Ints | None
        only = self._only.get((index, row))
        if not only and (not options.samples_candidates or index in self._from_rows):
            scores = self.row_scores(candidates, index, row)
            weights, tokens = row_weights(scores, sampling)
            scores = scores if tokens is None else scores[tokens]
        else:
            scores, tokens = candidates.scores[index], candidates.tokens[index]
            if only:
                scores, tokens = np.zeros(len(only), np.float32), np.array(only)
            weights = Warpers([sampling]).weights(scores[None])[0]
        return RowScores(warped_scores(scores, weights, sampling.temperature, normalize=scoring.normalize), tokens)

    def _check(self, best: Floats, free: Bools) -> None:
        """Raise NonFiniteError if the best score of a row that draws is -inf."""
        if (np.isneginf(best) & free).any():
            raise NonFiniteError(NONE_LEFT)

    def _uniforms(self, index: int, row: int) -> float:
        """The random number of a row's next token."""
        place = self.places[index]
        return float(place.state[row, max(0, int(self.lengths[index]) - place.P)])
