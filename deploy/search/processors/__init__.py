"""Score processors: what the settings do to the scores of the next tokens. One file a processor, or a few alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.settings_cache import SettingsCache
from tightbeam.deploy.search.processors._forms import Ban, Forcing, Processor, RowProcessor, TriePlace
from tightbeam.deploy.search.processors.bans import (
    bad_words,
    begin_suppressed,
    minimum_length,
    no_repeat_ngrams,
    source_ngrams,
    suppressed,
)
from tightbeam.deploy.search.processors.forced_tokens import forced_tokens
from tightbeam.deploy.search.processors.renormalize import renormalize
from tightbeam.deploy.search.processors.timestamps import timestamps
from tightbeam.deploy.search.processors.trie import trie
from tightbeam.deploy.search.rows import Ranked, Rows

__all__ = ["PROCESSORS", "Processors", "processors_of"]

Maker: TypeAlias = Callable[[GenerationOptions, Ints | None], Processor | None]
"""Makes a processor from the settings of a sample and the tokens int64 [N] of its source, None for features; returns
None if the settings do not ask for it."""

PROCESSORS: tuple[Maker, ...] = (
    no_repeat_ngrams,
    source_ngrams,
    bad_words,
    minimum_length,
    trie,
    forced_tokens,
    suppressed,
    begin_suppressed,
    timestamps,
    renormalize,
)
"""All processors, in the order in which transformers 5.24 applies them (`GenerationMixin._get_logits_processor`; a
processor that a model or a caller adds comes behind ``begin_suppress_tokens``).

The diversity and repetition penalties come before them, and the search head and the search apply these. The warpers of
sampling (`warpers`) come before ``renormalize``. A token that a processor bans never follows, in whatever order, but
for two: a trie that leaves nothing else outweighs the bans before it, and so does a forced token, which outweighs a ban
by the row's tokens behind it too.
"""


class Processors:
    """The score processors of one sample.

    Parameters
    ----------
    entries : sequence of Processor
        In the order of `PROCESSORS`.

    Attributes
    ----------
    reads_rows : bool
        True if candidates are ranked by whole rows of scores.
    forces : bool
        True if some tokens alone may follow at some length.
    """

    def __init__(self, entries: Sequence[Processor]) -> None:
        self._bans = [entry for entry in entries if isinstance(entry, Ban) and not entry.by_search_head]
        self._by_row = [ban for ban in self._bans if ban.by_row]
        self._from_forcing = list(entries[_first(entries, Forcing) :])
        trie = _first(entries, TriePlace)
        self._before_trie = [entry for entry in entries[:trie] if isinstance(entry, Ban)]
        self._behind_trie = [entry for entry in entries[trie:] if isinstance(entry, Ban)]
        self._of_rows = [entry for entry in entries if isinstance(entry, RowProcessor)]
        self._at: dict[int, Ints] = {}  # by length, what is banned after any row
        self._arrays: dict[tuple[int, ...], Ints] = {}  # these arrays, each once
        self._only: dict[int, tuple[int, ...]] = {}
        self.reads_rows, self.forces = bool(self._of_rows), bool(self._from_forcing)

    def banned(self, history: Ints) -> Ints:
        """Return the tokens int64 [B, M, P] that must not follow ``history`` int64 [B, M, T]; -1 is an unused entry."""
        B, M, T = history.shape
        fixed = self._banned_at(T)
        parts = [np.empty((B, M, len(fixed)), np.int64)]
        parts[0][:] = fixed
        for ban in self._by_row:
            parts.extend(ban.after(history))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)

    def banned_of_sample(self, history: Ints) -> Ints:
        """Return the tokens for one sample with ``history`` int64 [M, T]: int64 [M, P], or [P] for all rows."""
        return self.banned(history[None])[0] if self._by_row else self._banned_at(history.shape[1])

    def _banned_at(self, length: int) -> Ints:
        """The tokens int64 [P] that must not follow any ``length`` tokens."""
        if length not in self._at:
            tokens = tuple(sorted({token for ban in self._bans for token in ban.at(length)}))
            self._at[length] = self._arrays.setdefault(tokens, np.array(tokens, np.int64))
        return self._at[length]

    def forced(self, length: int) -> tuple[int, ...]:
        """Return the only tokens that may follow ``length`` tokens, ascending; empty if nothing is forced there."""
        if length not in self._only:
            only: set[int] = set()
            for entry in self._from_forcing:
                if isinstance(entry, Forcing):
                    only = set(entry.only(length)) or only
                elif isinstance(entry, Ban):
                    only -= set(entry.at(length))
            self._only[length] = tuple(sorted(only))
        return self._only[length]

    def left_by_trie(self, tokens: Array, row: Ints) -> tuple[Ints, Ints]:
        """Split what a trie allows after a row by the processors before and behind the trie.

        Parameters
        ----------
        tokens : integers [X]
            The tokens that the trie allows.
        row : int64 [T]

        Returns
        -------
        before, behind : integers
            The tokens that no processor before the trie bans, and the tokens that no processor behind it bans.
        """
        return _not_banned(self._before_trie, tokens, row), _not_banned(self._behind_trie, tokens, row)

    def process(self, scores: Floats, row: Ints, beginning: int) -> Floats:
        """Return the scores of a row's next token after all `RowProcessor.process`, whose parameters these are."""
        for processor in self._of_rows:
            scores = processor.process(scores, row, beginning)
        return scores

    def rank(self, rows: Rows, sample: int, beam_scores: Floats, found: Ranked) -> Ranked | None:
        """Return a sample's candidates without reading its rows, as `RowProcessor.rank`; None if they have to be."""
        return self._of_rows[0].rank(rows, sample, beam_scores, found) if len(self._of_rows) == 1 else None


def processors_of(options: GenerationOptions, source: Ints | None) -> Processors:
    """Return the processors of a sample.

    Parameters
    ----------
    options : GenerationOptions
    source : int64 [N] or None
        The tokens of its source or prompt; None for features.

    Returns
    -------
    Processors
        The same object for equal settings, unless the source has a part in them.
    """
    if source is None or options.reads_source is None:
        return _processors_of_settings(options)
    return _made(options, source)


@SettingsCache
def _processors_of_settings(options: GenerationOptions) -> Processors:
    return _made(options, None)


def _made(options: GenerationOptions, source: Ints | None) -> Processors:
    made = (maker(options, source) for maker in PROCESSORS)
    return Processors([entry for entry in made if entry is not None])


def _first(entries: Sequence[Processor], form: type[Processor]) -> int:
    """The index of the first entry of a form; the number of entries if there is no such entry."""
    return next((index for index, entry in enumerate(entries) if isinstance(entry, form)), len(entries))


def _not_banned(bans: Sequence[Ban], tokens: Array, row: Ints) -> Ints:
    """The tokens that no processor bans after a row int64 [T], ascending."""
    always = [token for ban in bans for token in ban.at(len(row))]
    by_row = [part.reshape(-1) for ban in bans if ban.by_row for part in ban.after(row[None, None])]
    return np.setdiff1d(tokens, np.concatenate([np.array(always, np.int64), *by_row]))
