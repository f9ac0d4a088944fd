"""The progress of a sequence through the words that must occur in it.

Source: transformers 4.56.2 `ConstraintListState`, `DisjunctiveConstraint` and `PhrasalConstraint`, which is one with a
single alternative. As there, copies of a state share the tokens of the word in progress: of several tokens that would
continue it, the second one continues what the first one has made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

__all__ = ["WordState", "Words"]

Words: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]
"""The alternatives of each word that must occur, as tokens."""
Branches = dict[int, "Branches"]


class _Word:
    """One word of which an alternative must occur, and the beginning of it that is there."""

    def __init__(self, branches: Branches, length: int, begun: list[int], complete: bool = False) -> None:
        self.branches, self.length, self.begun, self.complete = branches, length, begun, complete

    @classmethod
    def of(cls, alternatives: Iterable[Sequence[int]]) -> _Word:
        root: Branches = {}
        length = 0
        for tokens in alternatives:
            branch = root
            for token in tokens:
                branch = branch.setdefault(token, {})
            length = max(length, len(tokens))
        return cls(root, length, [])

    def fresh(self) -> _Word:
        return _Word(self.branches, self.length, [])

    def following(self) -> list[int]:
        """The tokens that continue it."""
        branch = self.branches
        for token in self.begun:
            branch = branch[token]
        return list(branch)

    def add(self, token: int) -> bool:
        """Take the next token; returns False for one that does not continue it, after which it begins anew."""
        continues = token in self.following()
        if continues:
            self.begun.append(token)
        else:
            self.begun = []
        self.complete = not self.following()
        return continues

    @property
    def remaining(self) -> int:
        return 0 if self.complete else self.length - len(self.begun)


class WordState:
    """The words that are complete, in progress, and still to come.

    Parameters
    ----------
    words : Words

    Attributes
    ----------
    complete : bool
        True when all words have occurred.
    """

    def __init__(self, words: Words) -> None:
        self._pending = [_Word.of(alternatives) for alternatives in words]
        self._longest = max(word.length for word in self._pending)
        self._progress: _Word | None = None
        self._done = 0
        self.complete = False

    @classmethod
    def of_row(cls, words: Words, row: Iterable[int]) -> WordState:
        """The state after the tokens of a row."""
        state = cls(words)
        for token in row:
            state.add(token)
            if state.complete:
                break
        return state

    @property
    def bank(self) -> int:
        """The progress in tokens: the longest word for each complete one, and the beginning of the word in progress."""
        begun = 0 if self._progress is None else self._longest - self._progress.remaining
        return self._done * self._longest + begun

    def following(self) -> list[int]:
        """The tokens that make progress."""
        words = self._pending if self._progress is None else [self._progress]
        return [token for word in words for token in word.following()]

    def then(self, token: int) -> WordState:
        """The state after one more token."""
        state = WordState.__new__(WordState)
        state._pending, state._longest = [word.fresh() for word in self._pending], self._longest
        own = self._progress
        state._progress = None if own is None else _Word(own.branches, own.length, own.begun, own.complete)
        state._done, state.complete = self._done, False
        state.add(token)
        return state

    def add(self, token: int) -> None:
        """Take the next token."""
        if self.complete:
            return
        word = self._progress
        if word is None:
            word = next((word for word in self._pending if token in word.following()), None)
            if word is None:
                return
            self._pending.remove(word)
            self._progress = word
        if not word.add(token):
            self._pending.append(word.fresh())
            self._progress = None
        if word.complete:
            self._done += 1
            self._progress = None
            self.complete = not self._pending
