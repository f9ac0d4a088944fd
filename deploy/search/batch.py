"""The samples of a running search by their places in the batch: each at its own length, with its own settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints, Nodes
from tightbeam.deploy.generation.confidence import Confidence
from tightbeam.deploy.generation.options import CHOSEN, GenerationOptions
from tightbeam.deploy.search.bans import Bans, bans_of, forced_candidates, forced_tokens
from tightbeam.deploy.search.callbacks import SearchCallback
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.measures import Measures
from tightbeam.deploy.search.nodes import next_nodes
from tightbeam.deploy.search.pool import Pool
from tightbeam.deploy.search.renormalized import renormalized
from tightbeam.deploy.search.rows import log_softmax
from tightbeam.deploy.search.step import Candidates, Step, StepInputs, best
from tightbeam.deploy.search.timestamps import apply_timestamp_rules, candidates_of_rows
from tightbeam.deploy.search.token_scores import RowScores, Scored, Trail
from tightbeam.deploy.tries.trie import FREE, ROOT

__all__ = ["BatchSearch", "Place", "scored_rows"]

NO_TOKEN = -2
"""Filler in the table of end tokens, which equals no token."""


LOWEST = np.finfo(np.float32).min


@dataclass
class Place:
    """One sample of the batch.

    Attributes
    ----------
    number : int
        The sample's number, as callbacks get it.
    options : GenerationOptions
    P : int
        Tokens that the sample's rows begin with.
    bans : Bans
        The banned tokens of its steps.
    pool : int64 [M, max_length] or None
        The finished sequences of beam search; None before there are any.
    draws : float64 [M, new tokens] or None
        The random numbers of sampling; of beam sampling [new tokens, K].
    trail : Trail or None
        The scores of tokens, where they are asked for.
    measures : Measures or None
        What is measured of its confidence.
    pools : list of Pool
        The finished sequences of each group of beams in diverse beam search; else empty.
    """

    number: int
    options: GenerationOptions
    P: int
    bans: Bans
    pool: Ints | None = None
    draws: Floats | None = None
    trail: Trail | None = None
    measures: Measures | None = None
    pools: list[Pool] = field(default_factory=list)


class BatchSearch:
    """Base of the searches: what a step is given, the decoder prompt, joining and leaving.

    Parameters
    ----------
    step : Step
        The decoder, whose batch has the same samples in the same places.
    num_beams : int
        M, of all samples.
    callback : SearchCallback
        Receives tokens and results, and may cancel samples.

    Attributes
    ----------
    places : list of Place
    lengths : int64 [B]
        Tokens of each sample's rows so far.
    scores : float32 [B, M]
        Beam scores; zeros in greedy search, and during a decoder prompt.
    parents : int64 [B, M]
        The beam of the last step that each row continues.
    nodes : int32 [B, M]
        The node of each row in the samples' trie; `FREE` without one, and before its length ``root``.
    """

    def __init__(self, step: Step, num_beams: int, callback: SearchCallback) -> None:
        self.step, self.callback, self.M = step, callback, num_beams
        self.places: list[Place] = []
        self.lengths = np.zeros(0, np.int64)
        self.scores = np.zeros((0, num_beams), np.float32)
        self.parents = np.zeros((0, num_beams), np.int64)
        self.nodes: Nodes = np.zeros((0, num_beams), np.int32)
        self._refresh()

    def join(
        self, number: int, options: GenerationOptions, beginning: Ints | None = None, source: Ints | None = None
    ) -> None:
        """Add a sample behind the others. The step's batch has it already.

        Parameters
        ----------
        number : int
            The sample's number.
        options : GenerationOptions
            Its settings; ``num_beams`` is that of the batch.
        beginning : int64 [P], optional
            The tokens that its rows begin with; the decoder has processed all but the last of them. By default
            ``options.prompt``, which is fed to the decoder first.
        source : int64 [N], optional
            The tokens of its source or prompt; None for features.
        """
        known = np.array(options.prompt[:1] if beginning is None else beginning, np.int64)
        P = len(options.prompt) if beginning is None else len(known)
        self.step.history[len(self.places), :, : len(known)] = known
        trail = None if options.scoring is None else Trail(options.scoring)
        self.places.append(Place(number, options, P, bans_of(options, source), trail=trail))
        if options.measured is not None:
            self.places[-1].measures = Measures(options.measured, self.M, options.max_length - P)
        self.lengths = np.append(self.lengths, len(known))
        first = np.zeros((1, self.M), np.float32) if len(known) < P else self.first_scores()
        self.scores = np.concatenate([self.scores, first])
        self.parents = np.concatenate([self.parents, np.arange(self.M)[None]])
        node = ROOT if options.trie is not None and len(known) >= options.root else FREE
        self.nodes = np.concatenate([self.nodes, np.full((1, self.M), node, np.int32)])
        self._joined = True

    def align(self, keys: Array) -> None:
        """Give the newest sample, which asks for times of tokens, the keys [A, N, K] of its alignment heads."""
        trail = self.places[-1].trail
        assert trail is not None
        trail.keys = keys

    def advance(self) -> None:
        """Run one step. Reports samples that are final to the callback, and removes them and the cancelled ones."""
        raise NotImplementedError

    def filler(self, options: GenerationOptions) -> int:
        """The token that a sample's rows are padded with."""
        raise NotImplementedError

    def first_scores(self) -> Floats:
        """The scores [1, M] of a sample's rows before their first token is chosen."""
        return np.zeros((1, self.M), np.float32)

    def _refresh(self) -> None:
        """Make the arrays that depend on the samples in the batch alone."""
        self._joined = False  # samples have joined since
        places = self.places
        self.index = np.arange(len(places))[:, None]  # [B, 1]
        self._numbers = np.array([place.number for place in places], np.int64)
        self.max_lengths = np.array([place.options.max_length for place in places], np.int64)
        self.beginnings = np.array([place.P for place in places], np.int64)
        self._looked_at = [  # places of the samples whose whole rows are read at each step
            index
            for index, place in enumerate(places)
            if place.options.timestamps is not None or place.measures is not None or place.options.renormalize
        ]
        self._trie = places[0].options.trie if places else None  # all samples of a batch have the same one
        self._roots = np.array([place.options.root for place in places], np.int64)
        ends = [place.options.eos_token_ids for place in places]
        self._eos = np.full((len(places), 1, max(map(len, ends), default=0)), NO_TOKEN, np.int64)
        for row, tokens in zip(self._eos, ends, strict=True):
            row[:, : len(tokens)] = tokens

    def is_end(self, tokens: Ints) -> Bools:
        """Return bool [B, X]: True for each of ``tokens`` int64 [B, X] that ends a sequence."""
        ends: Bools = (tokens[:, :, None] == self._eos).any(axis=2)
        return ends

    def run_step(self) -> tuple[Candidates, Bools]:
        """Run the decoder over all rows.

        Returns
        -------
        Candidates
            Those of each sample, forced tokens among them; valid until the next step.
        bool [B]
            True for a sample whose decoder prompt is not over. Its candidates do not count.
        """
        found, prompted = self.run_decoder()
        forced = self.forced()
        by_rows = [] if found.rows is None else [place for place in self._looked_at if not prompted[place]]
        if forced or by_rows:
            copies = found.scores.copy(), found.beams.copy(), found.tokens.copy()
            found = Candidates(*copies, found.rows, found.queries)
        for index in by_rows:
            place = self.places[index]
            ranked = self._renormalized(found, index) if place.options.renormalize else None
            if ranked is None:
                rows = [self.row_scores(found, index, beam) for beam in range(self.M)]
                if place.measures is not None:
                    place.measures.set_rows(rows)
                if place.options.timestamps is not None or place.options.renormalize:
                    ranked = candidates_of_rows(rows, self.scores[index], found.scores.shape[1])
            if ranked is not None:
                found.scores[index], found.beams[index], found.tokens[index] = ranked
        for index in self._without_candidates(found, prompted):
            if (continued := self.forced_by_trie(index, range(self.M))) is not None:
                found = Candidates(found.scores.copy(), found.beams.copy(), found.tokens.copy(), found.rows)
                self._force(found, index, continued)
        for index, only in forced:
            own = forced_candidates(self.places[index].options, only, self.scores[index : index + 1])
            found.scores[index], found.beams[index], found.tokens[index] = own.scores[0], own.beams[0], own.tokens[0]
        return found, prompted

    def _renormalized(self, found: Candidates, index: int) -> tuple[Floats, Ints, Ints] | None:
        """The candidates of a sample after renormalisation; None where whole rows say which they are."""
        place, own = self.places[index], (found.scores[index], found.beams[index], found.tokens[index])
        if found.rows is None or place.options.timestamps is not None or place.measures is not None:
            return None
        if len(own[0]) == place.options.vocab_size:  # then there may be none more than the search needs
            return None
        return renormalized(found.rows, index, self.step_scores()[index], own)

    def _without_candidates(self, found: Candidates, prompted: Bools) -> list[int]:
        """The places of the samples whose candidates all score -inf, in a run with a trie."""
        if self._trie is None:
            return []
        places: list[int] = np.flatnonzero(np.isneginf(found.scores[:, 0]) & ~prompted).tolist()
        return places

    def _force(self, found: Candidates, index: int, continued: list[Ints]) -> None:
        """Write the candidates of a sample whose rows go on by some tokens each, with the token score 0."""
        place, (M, C) = self.places[index], (self.M, found.scores.shape[1])
        scores = np.full((M, place.options.vocab_size), -np.inf, np.float32)
        for beam, tokens in enumerate(continued):
            scores[beam, tokens] = self.scores[index, beam] + place.options.forced_score(len(tokens))
        (chosen,) = best(scores.reshape(1, -1), C)
        found.beams[index], found.tokens[index] = chosen // scores.shape[1], chosen % scores.shape[1]
        found.scores[index] = scores.reshape(-1)[chosen]

    def forced_by_trie(self, index: int, beams: Sequence[int]) -> list[Ints] | None:
        """The tokens that rows of a sample go on by, each with the score 0, where all that the trie allows is banned.

        transformers forces them where no row of a sample has another token: the trie outweighs the settings whose
        processors come before it (repeated n-grams, bad words, least lengths), not those behind it (suppressed tokens).

        Parameters
        ----------
        index : int
            The sample's place.
        beams : sequence of int
            Its rows that are searched together.

        Returns
        -------
        list of integers [X], or None
            The tokens of each row; None where something else may follow, and where the trie is not begun or has ended.
        """
        place, length = self.places[index], int(self.lengths[index])
        if self._trie is None or self.nodes[index, 0] == FREE:
            return None
        children = [self._trie.children(int(self.nodes[index, beam])) for beam in beams]
        rows = [self.step.history[index, beam, :length] for beam in beams]
        split = [place.bans.left_by_trie(tokens, row) for tokens, row in zip(children, rows, strict=True)]
        if any(len(before) for before, _ in split):
            return None
        return [behind for _, behind in split] if any(len(behind) for _, behind in split) else None

    def run_decoder(self) -> tuple[Candidates, Bools]:
        """Run the decoder over all rows, as `run_step` does; forced tokens are not among the candidates."""
        if self._joined:
            self._refresh()
        lengths = self.lengths
        history = self.step.history[:, :, : int(lengths.max())]
        tokens = history[self.index, np.arange(self.M), lengths[:, None] - 1]  # [B, M]
        prompted = lengths < self.beginnings
        banned = self._banned(history, prompted)
        found = self.step(StepInputs(tokens, history, lengths, self.parents, self.step_scores(), banned, self.nodes))
        for index, place in enumerate(self.places):
            if place.measures is not None and found.rows is not None:
                place.measures.hear(int(lengths[index]), found.rows.logits[index * self.M])
        return found, prompted

    def step_scores(self) -> Floats:
        """The scores float32 [B, M] that a step adds to those of its tokens."""
        return np.maximum(self.scores, LOWEST)  # a row of tokens that must not come has -inf

    def measure(self, prompted: Bools, tokens: Ints, parents: Ints) -> None:
        """Measure the tokens int64 [B, M] that continue the rows ``parents`` int64 [B, M], but for decoder prompts."""
        for index in np.flatnonzero(~prompted).tolist():
            if (measures := self.places[index].measures) is not None:
                measures.extend(parents[index], tokens[index])

    def confidence(self, index: int) -> Confidence | None:
        """The confidence of a sample's first row, where it is measured."""
        measures = self.places[index].measures
        return None if measures is None else measures.of_row()

    def row_scores(self, candidates: Candidates, index: int, beam: int) -> Floats:
        """The scores float32 [vocabulary] of the next token of a row, all processors applied; not to be written to.

        Parameters
        ----------
        candidates : Candidates
            Those of the step, with its rows.
        index : int
            The sample's place.
        beam : int
            The row.
        """
        assert candidates.rows is not None
        place, scores = self.places[index], candidates.rows.processed(index * self.M + beam)
        if place.options.timestamps is not None:
            scores = scores.copy()
            new = self.step.history[index, beam, place.P : self.lengths[index]]
            apply_timestamp_rules(place.options.timestamps, scores, new)
        return log_softmax(scores) if place.options.renormalize and scores.max() > -np.inf else scores

    def next_scores(self, candidates: Candidates, index: int, beam: int) -> Floats:
        """The scores float32 [vocabulary] of the next token of a row, as `row_scores`; forced tokens alone have any."""
        options = self.places[index].options
        only = forced_tokens(options, int(self.lengths[index]))
        if not only:
            return self.row_scores(candidates, index, beam)
        scores = np.full(options.vocab_size, -np.inf, np.float32)
        scores[list(only)] = options.forced_score(len(only))
        return scores

    def forced(self) -> list[tuple[int, tuple[int, ...]]]:
        """The places of the samples of which some tokens alone may follow, and these tokens."""
        return [
            (index, only)
            for index, (place, length) in enumerate(zip(self.places, self.lengths.tolist(), strict=True))
            if length >= place.P and (only := forced_tokens(place.options, length))
        ]

    def _banned(self, history: Ints, prompted: Bools) -> Ints:
        """The banned tokens int64 [B, M, X] of a step; -1 is an unused entry."""
        first = self.places[0]
        lengths = self.lengths.tolist()
        if not prompted.any() and all(
            place.bans is first.bans and length == lengths[0]
            for place, length in zip(self.places, lengths, strict=True)
        ):
            return first.bans.banned(history)
        parts = [
            _choices(place, length) if feeding else place.bans.of_sample(history[index, :, :length])
            for index, (place, length, feeding) in enumerate(zip(self.places, lengths, prompted.tolist(), strict=True))
        ]
        widest = max(part.shape[-1] for part in parts)
        banned = np.full((len(parts), self.M, widest), -1, np.int64)
        for row, part in zip(banned, parts, strict=True):
            row[:, : part.shape[-1]] = part
        return banned

    def feed_prompts(self, prompted: Bools, tokens: Ints, scores: Floats, parents: Ints, best: Ints) -> None:
        """Replace what a step chose for samples whose decoder prompt is not over by the prompt's next token.

        Parameters
        ----------
        prompted : bool [B]
        tokens, scores, parents : arrays [B, M]
            The step's choice, which is changed.
        best : int64 [B, C]
            The tokens of all candidates.
        """
        for index in np.flatnonzero(prompted).tolist():
            place, length = self.places[index], int(self.lengths[index])
            token = place.options.prompt[length]
            tokens[index] = best[index, 0] if token == CHOSEN else token
            parents[index] = np.arange(self.M)
            scores[index] = self.first_scores()[0] if length + 1 == place.P else 0

    def begin_trails(self, candidates: Candidates, prompted: Bools) -> None:
        """Let the trails of samples whose decoder prompt is over read the scores of this step."""
        for index, place in enumerate(self.places):
            if place.trail is not None and not prompted[index]:
                rows = slice(index * self.M, (index + 1) * self.M)
                queries = None if candidates.queries is None else candidates.queries[rows]
                place.trail.begin(partial(self.scored_row, candidates, index), queries)

    def advance_trails(self, tokens: Ints, prompted: Bools, ended: Bools | None = None) -> None:
        """Let the trails follow a step, in which each row continues its parent by one of ``tokens`` int64 [B, M]; rows
        that have ended before, bool [B, M], do not."""
        for index, place in enumerate(self.places):
            if place.trail is not None and not prompted[index]:
                over = np.zeros(self.M, np.bool_) if ended is None else ended[index]
                place.trail.advance(self.parents[index], tokens[index], over)

    def scored_row(self, candidates: Candidates, index: int, row: int) -> RowScores:
        """The scores that a sample's row chooses its next token by, before anything is written."""
        scores, scoring = self.next_scores(candidates, index, row), self.places[index].options.scoring
        assert scoring is not None
        if self._trie is not None and scores.max() == -np.inf:
            continued = self.forced_by_trie(index, range(self.M))
            if continued is not None:
                scores = np.full_like(scores, -np.inf)
                scores[continued[row]] = self.places[index].options.forced_score(len(continued[row]))
        return RowScores(scores, normalize=scoring.normalize)

    def write(self, tokens: Ints, last: Bools) -> None:
        """Let every row continue its parent by one of ``tokens`` int64 [B, M]. Samples at their ``last`` length, bool
        [B], do not go on, so their tokens are left out."""
        if self.M > 1:
            history = self.step.history[:, :, : int(self.lengths.max())]
            history[:] = history[self.index, self.parents]
        going = np.flatnonzero(~last)
        self.step.history[going[:, None], np.arange(self.M), self.lengths[going, None]] = tokens[going]
        self.lengths += 1
        if self._trie is not None:
            self.nodes = next_nodes(self._trie, self.nodes[self.index, self.parents], tokens, self.lengths, self._roots)

    def cancelled(self, prompted: Bools, tokens: Ints | None) -> Bools:
        """Report a step, with ``tokens`` int64 [B] or None; returns bool [B], True for a cancelled sample."""
        cancelled = np.zeros(len(self.places), np.bool_)
        counted = np.flatnonzero(~prompted)
        if len(counted):
            told = None if tokens is None else tokens[counted]
            cancelled[counted] = self.callback.on_step(self._numbers[counted], told)
        return cancelled

    def remove(self, removed: Bools) -> None:
        """Remove samples, bool [B], from the batch. The step keeps the last ones, which no step follows."""
        if not removed.any():
            return
        compaction = Compaction.of(removed)
        if compaction.remaining:
            self.step.compact(compaction)
        self.places = _compacted(compaction, self.places)
        for name in self.arrays():
            setattr(self, name, compaction.apply(getattr(self, name)))
        self._refresh()

    def arrays(self) -> tuple[str, ...]:
        """Names of the attributes that are arrays by place."""
        return ("lengths", "scores", "parents", "nodes")


def scored_rows(place: Place) -> Scored:
    """The scores of the tokens of a sample's rows."""
    return Scored() if place.trail is None else place.trail.scored(place.trail.heads)


def _choices(place: Place, length: int) -> Ints:
    """The banned tokens int64 [X] of a step within a decoder prompt."""
    if place.options.prompt[length] != CHOSEN:
        return np.zeros(0, np.int64)
    banned: Ints = np.setdiff1d(np.arange(place.options.vocab_size), place.options.choices)
    return banned


def _compacted(compaction: Compaction, places: Sequence[Place]) -> list[Place]:
    left = list(places)
    for source, hole in compaction.moves:
        left[hole] = left[source]
    return left[: compaction.remaining]
