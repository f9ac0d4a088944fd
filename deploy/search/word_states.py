"""The progress of a sequence through the words that must occur in it.

Source: transformers 4.56.2 `ConstraintListState`, `DisjunctiveConstraint` and `PhrasalConstraint`, which is one with a
single alternative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from tightbeam.deploy.generation.settings_cache import SettingsCache

__all__ = ["WordState", "Words"]

Words: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]
"""The alternatives of each word that must occur, as tokens."""
Branches = dict[int, "Branches"]


class _Table:
    """The words as trees of their alternatives.

    Attributes
    ----------
    roots : list of Branches
        The tree of each word.
    lengths : list of int
        Tokens of the longest alternative of each word.
    longest : int
        The largest of ``lengths``.
    by_first : dict of int to list of int
        By a token, the words that it begins.
    """

    def __init__(self, words: Words) -> None:
        self.roots: list[Branches] = []
        self.by_first: dict[int, list[int]] = {}
        for word, alternatives in enumerate(words):
            root: Branches = {}
            for tokens in alternatives:
                branch = root
                for token in tokens:
                    branch = branch.setdefault(token, {})
            self.roots.append(root)
            for token in root:
                self.by_first.setdefault(token, []).append(word)
        self.lengths = [max(map(len, alternatives)) for alternatives in words]
        self.longest = max(self.lengths)


_table_of = SettingsCache(_Table)


class WordState:
    """The words that are complete, in progress, and still to come after the tokens of a row.

    Parameters
    ----------
    words : Words

    Attributes
    ----------
    complete : bool
        True when all words have occurred.
    """

    def __init__(self, words: Words) -> None:
        self._table = _table_of(words)
        # The words to come, in the order in which they are looked for, and the rank of each in that order.
        self._pending = {word: word for word in range(len(words))}
        self._next_rank = len(words)
        self._word: int | None = None  # in progress, with the branch behind its tokens so far and their number
        self._branch: Branches = {}
        self._begun = self._done = 0
        self.complete = False

    @classmethod
    def of_row(cls, words: Words, row: Iterable[int]) -> WordState:
        """The state after the tokens of a row."""
        state = cls(words)
        for token in row:
            state._add(token)
        return state

    @property
    def bank(self) -> int:
        """The progress in tokens: the longest word for each complete one, and the beginning of the word in progress."""
        return self._bank(self._word, self._begun)

    def _bank(self, word: int | None, begun: int) -> int:
        """The progress with ``begun`` tokens of a word, besides the complete words."""
        longest = self._table.longest
        return self._done * longest + (0 if word is None else longest - self._table.lengths[word] + begun)

    def following(self) -> list[int]:
        """The tokens that make progress, each once."""
        if self._word is not None:
            return list(self._branch)
        return list(dict.fromkeys(token for word in self._pending for token in self._table.roots[word]))

    def banks_after(self, following: Sequence[int]) -> list[int]:
        """The progress after each of the tokens of `following`.

        The reference makes a copy of the state for each token, and the copies share the tokens of the word in progress.
        So of several tokens that would continue it, the second one continues what the first one has made.
        """
        banks, branch, begun = [], self._branch, self._begun
        for token in following:
            word = self._word
            if word is None:
                word = self._first_pending(token)
                assert word is not None
                branch, begun = self._table.roots[word], 0
            if token not in branch:
                banks.append(self._bank(None, 0))
                continue
            branch, begun = branch[token], begun + 1
            banks.append(self._bank(word, begun) if branch else self._bank(None, 0) + self._table.longest)
        return banks

    def then(self, token: int) -> WordState:
        """The state after one more token."""
        state = WordState.__new__(WordState)
        state.__dict__.update(self.__dict__)
        state._pending = self._pending.copy()
        state._add(token)
        return state

    def _first_pending(self, token: int) -> int | None:
        """The first of the words to come that a token begins."""
        words = (word for word in self._table.by_first.get(token, ()) if word in self._pending)
        return min(words, key=self._pending.__getitem__, default=None)

    def _add(self, token: int) -> None:
        if self.complete:
            return
        if self._word is None:
            word = self._first_pending(token)
            if word is None:
                return
            del self._pending[word]
            self._word, self._branch, self._begun = word, self._table.roots[word], 0
        if token not in self._branch:  # it begins anew, behind the others
            self._pending[self._word] = self._next_rank
            self._next_rank += 1
            self._word = None
            return
        self._branch, self._begun = self._branch[token], self._begun + 1
        if not self._branch:
            self._done, self._word = self._done + 1, None
            self.complete = not self._pending
