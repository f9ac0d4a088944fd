"""The samples of a running search by their places in the batch: each at its own length, with its own settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.generation.options import CHOSEN, GenerationOptions
from tightbeam.deploy.search.callbacks import SearchCallback
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.endings import Endings, endings_of
from tightbeam.deploy.search.observers import Observer, SampleStep, observers_of
from tightbeam.deploy.search.processors import Processors, processors_of
from tightbeam.deploy.search.processors.forced_tokens import forced_candidates
from tightbeam.deploy.search.processors.trie import TrieRows
from tightbeam.deploy.search.rows import Ranked, best, candidates_of_rows, common_beginning
from tightbeam.deploy.search.step import Candidates, SearchResult, Step, StepInputs
from tightbeam.deploy.search.token_scores import RowScores

__all__ = ["BatchSearch", "Place", "with_reasons"]

State = TypeVar("State")
"""The state that a kind of search has for each sample."""
NO_TOKEN = -2
"""Filler in the table of end tokens, which equals no token."""
LOWEST = np.finfo(np.float32).min


@dataclass
class Place(Generic[State]):
    """One sample of the batch.

    Attributes
    ----------
    number : int
        The sample's number, as callbacks get it.
    options : GenerationOptions
    P : int
        Tokens that the sample's rows begin with.
    processors : Processors
        The score processors that its settings ask for.
    observers : list of Observer
        The observers that its settings ask for.
    endings : Endings
        What ends its sequences.
    state : State
        What the search keeps of it.
    """

    number: int
    options: GenerationOptions
    P: int
    processors: Processors
    observers: list[Observer]
    endings: Endings
    state: State


class BatchSearch(Generic[State]):
    """Base of the searches: what a step is given, the decoder prompt, joining and leaving.

    A step runs the decoder, then asks the score processors and the observers that each sample's settings ask for, which
    `PROCESSORS` and `OBSERVERS` list. It knows the forms of a processor alone, and no setting by name.

    Parameters
    ----------
    step : Step
        The decoder, whose batch has the same samples in the same places.
    options : GenerationOptions
        The options of any sample of the batch.
    callback : SearchCallback
        Receives tokens and results, and may cancel samples.

    Attributes
    ----------
    M : int
        Rows of each sample.
    places : list of Place
    lengths : int64 [B]
        Tokens of each sample's rows so far.
    scores : float32 [B, M]
        Beam scores; zeros in greedy search, and during a decoder prompt.
    parents : int64 [B, M]
        The beam of the last step that each row continues.
    trie : TrieRows
        The rows in the samples' trie.
    """

    def __init__(self, step: Step, options: GenerationOptions, callback: SearchCallback) -> None:
        self.step, self.callback, self.M = step, callback, options.num_beams
        self.places: list[Place[State]] = []
        self.lengths = np.zeros(0, np.int64)
        self.scores = np.zeros((0, self.M), np.float32)
        self.parents = np.zeros((0, self.M), np.int64)
        self.trie = TrieRows(options.trie, self.M)
        for name, row in self.first_rows().items():
            setattr(self, name, row[:0])
        self._refresh()

    # What a kind of search defines.

    def advance(self) -> None:
        """Run one step. Reports samples that are final to the callback, and removes them and the cancelled ones."""
        raise NotImplementedError

    def new_state(self, options: GenerationOptions, beginning: int) -> State:
        """Return the search's own state for a sample that joins, whose rows begin with ``beginning`` tokens."""
        raise NotImplementedError

    def first_scores(self) -> Floats:
        """The scores [1, M] of a sample's rows before their first token is chosen."""
        return np.zeros((1, self.M), np.float32)

    def first_rows(self) -> dict[str, Array]:
        """The search's own attributes that are arrays by place, by name: the row [1, ...] of a sample that joins."""
        return {}

    def step_scores(self) -> Floats:
        """The scores float32 [B, M] that a step adds to the scores of its tokens."""
        return np.maximum(self.scores, LOWEST)  # a row of tokens that must not come has -inf

    def possible_scores(self, candidates: Candidates, index: int, row: int) -> Floats:
        """The scores float32 [vocabulary] of a row's next token, as `SampleStep.possible_scores`."""
        return self.row_scores(candidates, index, row)

    def chosen_by(self, candidates: Candidates, index: int, row: int) -> RowScores:
        """The scores by which a sample's row chooses its next token, as `SampleStep.chosen_by`."""
        options, scores = self.places[index].options, self.next_scores(candidates, index, row)
        assert options.scoring is not None
        continued = self.last_resort(index, range(self.M)) if scores.max() == -np.inf else None
        if continued is not None:
            scores = np.full_like(scores, -np.inf)
            scores[continued[row]] = options.forced_score(len(continued[row]))
        return RowScores(scores, normalize=options.scoring.normalize)

    # Joining.

    def join(
        self,
        number: int,
        options: GenerationOptions,
        beginning: Ints | None = None,
        source: Ints | None = None,
        read: int = 0,
    ) -> None:
        """Add a sample behind the others. The step's batch has it already.

        Parameters
        ----------
        number : int
            The sample's number.
        options : GenerationOptions
            Its settings, of the batch's kind.
        beginning : int64 [P], optional
            The tokens that its rows begin with; the decoder has processed all but the last of them. By default
            ``options.prompt``, which is fed to the decoder first.
        source : int64 [N], optional
            The tokens of its source or prompt; None for features.
        read : int
            Tokens of ``options.prompt`` that the decoder has processed, fewer than all.
        """
        known = np.array(options.prompt[: read + 1] if beginning is None else beginning, np.int64)
        P = len(options.prompt) if beginning is None else len(known)
        self.step.history[len(self.places), :, : len(known)] = known
        processors, observers = processors_of(options, source), observers_of(options, P)
        parts = processors, observers, endings_of(options)
        self.places.append(Place(number, options, P, *parts, self.new_state(options, P)))
        self.lengths = np.append(self.lengths, len(known))
        first = np.zeros((1, self.M), np.float32) if len(known) < P else self.first_scores()
        for name, row in {"scores": first, "parents": np.arange(self.M)[None], **self.first_rows()}.items():
            setattr(self, name, np.concatenate([getattr(self, name), row]))
        self.trie.join(options, len(known))
        self._joined = True

    def align(self, keys: Array, mask: Ints | None = None) -> None:
        """Give the newest sample, which asks for attention or times, the keys [A, N, K] of its alignment heads, and the
        mask int64 [N] of its source, if some positions are padding."""
        for observer in self.places[-1].observers:
            observer.on_keys(keys, mask)

    def _refresh(self) -> None:
        """Make the arrays and lists that depend on the samples in the batch alone."""
        self._joined = False  # samples have joined since
        places = self.places
        self.index = np.arange(len(places))[:, None]  # [B, 1]
        self._numbers = np.array([place.number for place in places], np.int64)
        self.max_lengths = np.array([place.options.max_length for place in places], np.int64)
        self.beginnings = np.array([place.P for place in places], np.int64)
        self._same_bans = all(place.processors is places[0].processors for place in places)
        self._forcing = [index for index, place in enumerate(places) if place.processors.forces]
        self._reading_rows = [index for index, place in enumerate(places) if place.processors.reads_rows]
        self._observers = [(index, observer) for index, place in enumerate(places) for observer in place.observers]
        ends = [place.endings.tokens for place in places]
        self._end_tokens = np.full((len(places), 1, max(map(len, ends), default=0)), NO_TOKEN, np.int64)
        for row, tokens in zip(self._end_tokens, ends, strict=True):
            row[:, : len(tokens)] = tokens
        self._ending_by_row = [index for index, place in enumerate(places) if place.endings.by_row]

    # What a stream is given between two steps.

    def certain(self, number: int, known: int = 0) -> Ints:
        """Return the tokens with which every sequence begins that may still become the best of a sample.

        Parameters
        ----------
        number : int
            The sample's number.
        known : int
            Tokens that are left out at the beginning.

        Returns
        -------
        int64 [T]
            Empty if the batch has no sample of this number.
        """
        index = next((index for index, place in enumerate(self.places) if place.number == number), None)
        if index is None:
            return np.zeros(0, np.int64)
        rows = self.step.history[index, self.running_rows(index), known : int(self.lengths[index])]
        return common_beginning([*rows, *(sequence[known:] for sequence in self.finished_rows(index))])

    def running_rows(self, index: int) -> list[int]:
        """The rows of a sample whose continuations may become its best sequence."""
        return list(range(self.M))

    def finished_rows(self, index: int) -> list[Ints]:
        """The finished sequences int64 [T] of a sample of which one is the best if no continuation is better."""
        return []

    # A step: the decoder, and what processors make of its candidates.

    def run_step(self) -> tuple[Candidates, Bools]:
        """Run the decoder over all rows, and apply the processors that the search head does not.

        Returns
        -------
        Candidates
            The candidates of each sample, forced tokens among them; valid until the next step.
        bool [B]
            True for a sample whose decoder prompt is not over. Its candidates do not count.
        """
        found, prompted = self.run_decoder()
        forced = self.forced()
        by_rows = [] if found.rows is None else [index for index in self._reading_rows if not prompted[index]]
        if forced or by_rows:
            found = found.copy()
        for index in by_rows:
            found.put(index, self._ranked(found, index))
        if blocked := self.trie.without_candidates(found.scores, prompted):
            found = found.copy()
        for index in blocked:
            if (continued := self.last_resort(index, range(self.M))) is not None:
                found.put(index, self._continued(index, continued, found.scores.shape[1]))
        for index, only in forced:
            found.put(index, self.forced_of(index, only))
        return found, prompted

    def run_decoder(self) -> tuple[Candidates, Bools]:
        """Run the decoder over all rows, as `run_step` does, but return the search head's own candidates."""
        if self._joined:
            self._refresh()
        lengths = self.lengths
        history = self.step.history[:, :, : int(lengths.max())]
        tokens = history[self.index, np.arange(self.M), lengths[:, None] - 1]  # [B, M]
        prompted = lengths < self.beginnings
        banned, scores = self._banned(history, prompted), self.step_scores()
        found = self.step(StepInputs(tokens, history, lengths, self.parents, scores, banned, self.trie.nodes))
        for index, observer in self._observers:
            if found.rows is not None:
                observer.on_decoder(int(lengths[index]), found.rows, index * self.M)
            if not prompted[index]:
                observer.on_step(self._sample_step(found, index))
        return found, prompted

    def _sample_step(self, found: Candidates, index: int) -> SampleStep:
        """The step as the observers of a sample see it."""
        rows = slice(index * self.M, (index + 1) * self.M)
        possible, chosen_by = partial(self.possible_scores, found, index), partial(self.chosen_by, found, index)
        return SampleStep(possible, chosen_by, None if found.queries is None else found.queries[rows])

    def _banned(self, history: Ints, prompted: Bools) -> Ints:
        """The banned tokens int64 [B, M, X] of a step; -1 is an unused entry."""
        lengths = self.lengths.tolist()
        if self._same_bans and lengths.count(lengths[0]) == len(lengths) and not prompted.any():
            return self.places[0].processors.banned(history)
        parts = [
            _not_choices(place, length) if feeding else place.processors.banned_of_sample(history[index, :, :length])
            for index, (place, length, feeding) in enumerate(zip(self.places, lengths, prompted.tolist(), strict=True))
        ]
        widest = max(part.shape[-1] for part in parts)
        banned = np.full((len(parts), self.M, widest), -1, np.int64)
        for row, part in zip(banned, parts, strict=True):
            row[:, : part.shape[-1]] = part
        return banned

    def _ranked(self, found: Candidates, index: int) -> Ranked:
        """The candidates of a sample whose settings rank whole rows."""
        assert found.rows is not None
        place, ranked = self.places[index], None
        if not any(observer.reads_rows for observer in place.observers):
            ranked = place.processors.rank(found.rows, index, self.step_scores()[index], found.of(index))
        if ranked is None:
            rows = [self.row_scores(found, index, beam) for beam in range(self.M)]
            ranked = candidates_of_rows(rows, self.scores[index], found.scores.shape[1])
        return ranked

    def row_scores(self, candidates: Candidates, index: int, beam: int) -> Floats:
        """The scores float32 [vocabulary] of the next token of a sample's row after all processors but forced tokens;
        not to be written to. ``candidates`` have the rows of the step."""
        assert candidates.rows is not None
        place, scores = self.places[index], candidates.rows.processed(index * self.M + beam)
        return place.processors.process(scores, self.step.history[index, beam, : self.lengths[index]], place.P)

    def next_scores(self, candidates: Candidates, index: int, beam: int) -> Floats:
        """The scores float32 [vocabulary] of the next token of a row, as `row_scores`; forced tokens alone have any."""
        place = self.places[index]
        only = place.processors.forced(int(self.lengths[index]))
        if not only:
            return self.row_scores(candidates, index, beam)
        scores = np.full(place.options.vocab_size, -np.inf, np.float32)
        scores[list(only)] = place.options.forced_score(len(only))
        return scores

    def forced(self) -> list[tuple[int, tuple[int, ...]]]:
        """The places of the samples of which some tokens alone may follow, and these tokens."""
        return [
            (index, only)
            for index in self._forcing
            if (length := int(self.lengths[index])) >= (place := self.places[index]).P
            and (only := place.processors.forced(length))
        ]

    def forced_of(self, index: int, only: tuple[int, ...], beams: slice = slice(None)) -> Ranked:
        """The candidates of a sample, or of some of its beams, of which some tokens alone may follow."""
        return forced_candidates(self.places[index].options, only, self.scores[index : index + 1, beams]).of(0)

    def last_resort(self, index: int, beams: Sequence[int]) -> list[Ints] | None:
        """The tokens [X] by which each of some rows of a sample goes on if nothing else may follow, as
        `TrieRows.last_resort`; None if something else may."""
        rows = [self.step.history[index, beam, : self.lengths[index]] for beam in beams]
        return self.trie.last_resort(index, beams, rows, self.places[index].processors.left_by_trie)

    def _continued(self, index: int, continued: list[Ints], count: int) -> Ranked:
        """The best ``count`` candidates of a sample whose rows go on by some tokens each, as forced ones."""
        options = self.places[index].options
        scores = np.full((self.M, options.vocab_size), -np.inf, np.float32)
        for beam, tokens in enumerate(continued):
            scores[beam, tokens] = self.scores[index, beam] + options.forced_score(len(tokens))
        (chosen,) = best(scores.reshape(1, -1), count)
        return scores.reshape(-1)[chosen], chosen // scores.shape[1], chosen % scores.shape[1]

    # What a search has chosen.

    def ends(self, tokens: Ints, rows: Ints, prompted: Bools) -> Bools:
        """Return bool [B, X]: True for each of ``tokens`` int64 [B, X] that ends the row that it continues, one of
        ``rows`` int64 [B, X]. In a decoder prompt, ``prompted`` bool [B], nothing ends."""
        ends: Bools = (tokens[:, :, None] == self._end_tokens).any(axis=2)
        for index in self._ending_by_row:
            if not prompted[index]:
                ends[index] = self.ends_of(index, tokens[index], rows[index])
        return ends & ~prompted[:, None]

    def ends_of(self, index: int, tokens: Ints, rows: Ints) -> Bools:
        """Return bool [X], as `ends`, for one sample's ``tokens`` int64 [X] and ``rows`` int64 [X]."""
        history, endings = self.step.history[index, :, : self.lengths[index]], self.places[index].endings
        ends: Bools = np.isin(tokens, endings.tokens)
        for ending in endings.by_row:
            ends |= ending.ends(history, rows, tokens)
        return ends

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

    def observe(self, tokens: Ints, prompted: Bools, ended: Bools | None = None) -> None:
        """Report a step's choice to the observers: each row continues its parent by one of ``tokens`` int64 [B, M],
        unless it has ``ended`` before, bool [B, M]."""
        for index, observer in self._observers:
            if not prompted[index]:
                over = np.zeros(self.M, np.bool_) if ended is None else ended[index]
                observer.on_tokens(self.parents[index], tokens[index], over)

    def report_rows(self, index: int, tokens: Ints, new: Ints) -> None:
        """Report the rows of a sample, which end with ``tokens`` int64 [M] of this step, as its result. They have
        ``new`` int64 [M] new tokens; the rest is padding."""
        place = self.places[index]
        before = self.step.history[index, :, : self.lengths[index]]  # [M, T]
        rows = np.concatenate([before, tokens[:, None]], axis=1)
        result = with_reasons(SearchResult(rows, None, new_tokens=tuple(new.tolist())), place)
        for observer in place.observers:
            result = observer.add_running(result)
        self.callback.on_finished(place.number, result)

    def write(self, tokens: Ints, last: Bools) -> None:
        """Let every row continue its parent by one of ``tokens`` int64 [B, M]. Samples at their ``last`` length, bool
        [B], do not go on, so their tokens are left out."""
        if self.M > 1:
            history = self.step.history[:, :, : int(self.lengths.max())]
            history[:] = history[self.index, self.parents]
        going = np.flatnonzero(~last)
        self.step.history[going[:, None], np.arange(self.M), self.lengths[going, None]] = tokens[going]
        self.lengths += 1
        self.trie.follow(self.index, self.parents, tokens, self.lengths)

    def cancelled(self, prompted: Bools, tokens: Ints | None) -> Bools:
        """Report a step, with ``tokens`` int64 [B] or None; returns bool [B], True for a cancelled sample."""
        if not prompted.any():
            return self.callback.on_step(self._numbers, tokens)
        cancelled = np.zeros(len(self.places), np.bool_)
        counted = np.flatnonzero(~prompted)
        if len(counted):
            reported = None if tokens is None else tokens[counted]
            cancelled[counted] = self.callback.on_step(self._numbers[counted], reported)
        return cancelled

    def remove(self, removed: Bools) -> None:
        """Remove samples, bool [B], from the batch. The step keeps the last ones, which no step follows."""
        if not removed.any():
            return
        compaction = Compaction.of(removed)
        if compaction.remaining:
            self.step.compact(compaction)
        self.places = _compacted(compaction, self.places)
        for name in ("lengths", "scores", "parents", *self.first_rows()):
            setattr(self, name, compaction.apply(getattr(self, name)))
        self.trie.compact(compaction)
        self._refresh()


def with_reasons(result: SearchResult, place: Place[Any]) -> SearchResult:
    """Return the result of a sample, which has its numbers of new tokens, with the reasons why its sequences ended."""
    ends = zip(result.sequences, result.new_tokens, strict=True)
    return replace(result, finish_reasons=tuple(place.endings.reason(row[: place.P + new]) for row, new in ends))


def _not_choices(place: Place[State], length: int) -> Ints:
    """The banned tokens int64 [X] of a step within a decoder prompt."""
    if place.options.prompt[length] != CHOSEN:
        return np.zeros(0, np.int64)
    banned: Ints = np.setdiff1d(np.arange(place.options.vocab_size), place.options.choices)
    return banned


def _compacted(compaction: Compaction, places: Sequence[Place[State]]) -> list[Place[State]]:
    left = list(places)
    for source, hole in compaction.moves:
        left[hole] = left[source]
    return left[: compaction.remaining]
