"""The forms of a score processor. An object of each is made of settings alone, and serves all rows and all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.search.rows import Ranked, Rows

__all__ = ["Ban", "Forcing", "Processor", "RowProcessor", "TriePlace"]


class Ban:
    """Tokens that must not follow a row: they score -inf. The search head needs their ids alone, and no row is read.

    Attributes
    ----------
    by_row : bool
        True if the tokens depend on the row, so that `after` has some.
    by_search_head : bool
        True if the search head finds the tokens itself, from a number among its inputs.
    """

    by_row = False
    by_search_head = False

    def at(self, length: int) -> tuple[int, ...]:
        """Return the tokens that must not follow any row of ``length`` tokens."""
        return ()

    def after(self, history: Ints) -> Sequence[Ints]:
        """Return arrays int64 [B, M, P] of the tokens that must not follow each row.

        Parameters
        ----------
        history : int64 [B, M, T]
            The rows.

        Returns
        -------
        sequence of int64 [B, M, P]
            -1 is an unused entry. P may differ from one array to the next.
        """
        return ()


class Forcing:
    """Tokens of which one must follow: it gets the score of a forced token, and all others -inf."""

    def only(self, length: int) -> tuple[int, ...]:
        """Return the only tokens that may follow ``length`` tokens; empty if nothing is forced there."""
        raise NotImplementedError


class RowProcessor:
    """Changes of a row's scores that depend on the scores. Each row of a step is read, so a runtime must give logits:
    name the setting in ``GenerationOptions.reads_logits`` and ``needs_logits``."""

    def process(self, scores: Floats, row: Ints, beginning: int) -> Floats:
        """Return the scores of a row's next token.

        Parameters
        ----------
        scores : float32 [vocabulary]
            The scores after all processors before this one; not to be written to.
        row : int64 [T]
            The row's tokens.
        beginning : int
            Tokens of the row that are not new: the start token, or the prompt.

        Returns
        -------
        float32 [vocabulary]
        """
        raise NotImplementedError

    def rank(self, rows: Rows, sample: int, beam_scores: Floats, found: Ranked) -> Ranked | None:
        """Return the candidates of a sample without reading its rows; None if they have to be read.

        It is asked only if no other row processor applies.

        Parameters
        ----------
        rows : Rows
            The rows of the step.
        sample : int
            The sample's place in the batch.
        beam_scores : float32 [M]
            Scores of the sample's rows so far.
        found : Ranked
            The search head's candidates [C] of the sample, best first.

        Returns
        -------
        Ranked or None
        """
        return None


class TriePlace:
    """The place of the trie in the order. The search head applies a trie itself; the processors before and behind it
    decide together with it if nothing is left (`TrieRows.last_resort`)."""


Processor: TypeAlias = Ban | Forcing | RowProcessor | TriePlace
