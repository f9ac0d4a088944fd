"""Beam sampling: the continuations of a sample's beams are drawn, by the scores of beams and tokens together.

Source: transformers 5.24 `GenerationMixin._beam_search` with do_sample=True. A step draws as many candidates as beam
search would take the best of, without replacement, from the softmax of all accumulated scores, and orders them by their
scores. What follows is beam search. The distribution is the same; the draw is from a stream of random numbers that each
input has to itself (`Sampling.uniforms`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.errors import NonFiniteError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.beam import BeamSearch, FinishedBeams
from tightbeam.deploy.search.draws import NONE_LEFT, drawn_in_turn, keyed_settings, settings_of
from tightbeam.deploy.search.step import OUT, Candidates
from tightbeam.deploy.search.token_scores import RowScores
from tightbeam.deploy.search.warpers import Warpers, forced_weights, kept_scores, row_weights

__all__ = ["BeamSampleSearch"]

Row = tuple[Floats, Ints]
"""The warped scores float32 [n] of a row's next tokens, and the tokens int64 [n], ascending; no other may come."""


@dataclass(kw_only=True)
class DrawnBeams(FinishedBeams):
    """The pool of finished sequences of a sample, and its draws.

    Attributes
    ----------
    uniforms : float64 [new tokens, K]
        The random numbers of each step.
    """

    uniforms: Floats


class BeamSampleSearch(BeamSearch):
    """Continue each sample's beams by candidates that are drawn, and return the best finished sequences.

    If fewer candidates have a probability than are drawn, the best of the others follow them.
    """

    def new_state(self, options: GenerationOptions, beginning: int) -> DrawnBeams:
        steps = options.max_length - beginning
        uniforms = keyed_settings(options).uniforms(0, steps * options.drawn)
        return DrawnBeams(uniforms=uniforms.reshape(steps, options.drawn))

    def _refresh(self) -> None:
        super()._refresh()
        self._warpers = Warpers([settings_of(place.options) for place in self.places for _ in range(self.M)])

    def step_scores(self) -> Floats:
        """Zeros, since tokens are warped by their own scores."""
        return np.zeros_like(self.scores)

    def run_step(self) -> tuple[Candidates, Bools]:
        found, prompted = self.run_decoder()
        forced = dict(self.forced())
        listed = self._listed(found) if self.places[0].options.samples_candidates else None
        self._rows: dict[int, list[Row]] = {}
        B, K = len(self.places), max(place.options.drawn for place in self.places)
        drawn = Candidates(np.full((B, K), -np.inf, np.float32), np.zeros((B, K), int), np.zeros((B, K), np.int64))
        for index in np.flatnonzero(~prompted).tolist():
            if only := forced.get(index):
                rows = [self._forced_row(index, only)] * self.M
            elif listed is None:
                rows = [self._whole_row(found, index, beam) for beam in range(self.M)]
            else:
                rows = [row or self._whole_row(found, index, beam) for beam, row in enumerate(listed[index])]
            if all(warped.max(initial=-np.inf) == -np.inf for warped, _ in rows):
                continued = self.last_resort(index, range(self.M))
                rows = rows if continued is None else [self._forced_row(index, tuple(only)) for only in continued]
            self._rows[index] = rows
            self._draw(index, rows, drawn)
        return drawn, prompted

    def _draw(self, index: int, rows: list[Row], drawn: Candidates) -> None:
        """Draw the candidates of a sample from the ``rows`` of its beams, into its place of ``drawn``."""
        place, count = self.places[index], self.places[index].options.drawn
        scores = np.concatenate([warped + self.scores[index, beam] for beam, (warped, _) in enumerate(rows)])
        best = scores.max(initial=-np.inf)
        if best == -np.inf and self.pool_scores[index, 0] <= OUT:
            raise NonFiniteError(NONE_LEFT)
        weights: Floats = np.exp(scores.astype(np.float64) - (best if best > -np.inf else 0))
        assert isinstance(place.state, DrawnBeams)
        chosen = drawn_in_turn(weights, place.state.uniforms[int(self.lengths[index]) - place.P])
        chosen = np.sort(chosen)  # of equal scores the lower beam and token come first
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        if len(chosen) < count:
            order = np.argsort(-scores, kind="stable")
            chosen = np.concatenate([chosen, order[~np.isin(order, chosen)]])[:count]
        beams = np.repeat(np.arange(self.M), [len(tokens) for _, tokens in rows])
        tokens = np.concatenate([tokens for _, tokens in rows])
        own = index, slice(len(chosen))
        drawn.scores[own], drawn.beams[own], drawn.tokens[own] = scores[chosen], beams[chosen], tokens[chosen]

    def _listed(self, found: Candidates) -> list[list[Row | None]]:
        """The rows of all samples out of the step's candidates; None for a row of which more tokens than these equal
        the last one that is kept, if the step has whole rows."""
        B, M = self.scores.shape
        scores, tokens = found.scores.reshape(B * M, -1), found.tokens.reshape(B * M, -1)
        few = np.isneginf(scores[:, -1])  # all tokens that may come are among the candidates
        weights = self._warpers.weights(np.where(np.isneginf(scores[:, :1]), np.float32(0), scores))
        warped = np.where(weights > 0, scores / self._warpers.temperature.astype(np.float32), np.float32(-np.inf))
        last = np.minimum(self._warpers.top_k, scores.shape[1]) - 1
        tied = ~few & (scores[:, -1] >= np.take_along_axis(scores, last, axis=1)[:, 0])
        tied &= found.rows is not None and self.places[0].options.vocab_size > scores.shape[1]
        order = np.argsort(tokens, axis=1)
        warped, tokens = (np.take_along_axis(array, order, axis=1) for array in (warped, tokens))
        rows: list[Row | None] = [
            None if whole else (own, ids) for whole, own, ids in zip(tied.tolist(), warped, tokens, strict=True)
        ]
        return [rows[index * M : (index + 1) * M] for index in range(B)]

    def _whole_row(self, found: Candidates, index: int, beam: int) -> Row:
        """A row out of all its scores."""
        scores, sampling = self.row_scores(found, index, beam), settings_of(self.places[index].options)
        if scores.max() == -np.inf:
            return scores[:0], np.zeros(0, np.int64)
        weights, tokens = row_weights(scores, sampling)
        tokens = np.flatnonzero(weights) if tokens is None else np.sort(tokens[weights > 0])
        return scores[tokens] / np.float32(sampling.temperature), tokens

    def _forced_row(self, index: int, only: tuple[int, ...]) -> Row:
        """A row of which some tokens alone may follow, ascending, each with the score 0."""
        if not len(only):
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        weights = forced_weights(len(only), settings_of(self.places[index].options))
        return np.where(weights > 0, np.float32(0), np.float32(-np.inf)), np.array(only)

    def possible_scores(self, candidates: Candidates, index: int, row: int) -> Floats:
        return kept_scores(self.next_scores(candidates, index, row), settings_of(self.places[index].options))

    def chosen_by(self, candidates: Candidates, index: int, row: int) -> RowScores:
        scoring, (warped, tokens) = self.places[index].options.scoring, self._rows[index][row]
        assert scoring is not None
        return RowScores(warped, tokens, normalize=scoring.normalize and len(warped) > 0)
