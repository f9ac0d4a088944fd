"""The base of the observers, and a step as they see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.search.rows import Rows
from tightbeam.deploy.search.step import SearchResult
from tightbeam.deploy.search.token_scores import RowScores

__all__ = ["Observer", "SampleStep"]


@dataclass(frozen=True)
class SampleStep:
    """One step of a sample. The functions may be called until the tokens of the step are written.

    Attributes
    ----------
    possible_scores : function
        Takes a row of the sample; returns the processed scores float32 [vocabulary] of its next token, -inf for a token
        that cannot come. They are not to be written to.
    chosen_by : function
        Takes a row of the sample; returns the scores by which its next token is chosen, as forced tokens and warpers
        leave them.
    queries : floats [M, A, K] or None
        The queries of the alignment heads, if the step gives them; the next step overwrites them.
    """

    possible_scores: Callable[[int], Floats]
    chosen_by: Callable[[int], RowScores]
    queries: Array | None


class Observer:
    """An observer of the search of one sample, which changes nothing and adds to the result. By default a method does
    nothing.

    Attributes
    ----------
    reads_rows : bool
        True if it reads the row of every token that is chosen, so that candidates are ranked by whole rows too.
    """

    reads_rows = False

    def on_keys(self, keys: Array, mask: Ints | None) -> None:
        """Receive the keys, floats [A, N, K], of the sample's alignment heads, before the first step, and the mask
        int64 [N], which is 0 at padding; None without any."""

    def on_decoder(self, length: int, rows: Rows, row: int) -> None:
        """Receive whole rows of a step, in the decoder prompt too, before any processor is applied.

        Parameters
        ----------
        length : int
            Tokens of the sample's rows.
        rows : Rows
        row : int
            The sample's first row among the rows of the batch.
        """

    def on_step(self, step: SampleStep) -> None:
        """Receive a step behind the decoder prompt, before its tokens are chosen."""

    def on_finished(self, kept: Bools, old: Ints, beams: Ints, tokens: Ints) -> None:
        """Receive changes among the M finished sequences of beam search.

        Parameters
        ----------
        kept : bool [M]
            True for a sequence that was finished before.
        old : int64 [M]
            The place that it had, if it is kept.
        beams, tokens : int64 [M]
            The row and the token that end it in this step, if it is not.
        """

    def on_tokens(self, parents: Ints, tokens: Ints, ended: Bools) -> None:
        """Receive the choice of a step: each row int64 [M] continues its parent by a token; rows that have ``ended``
        before, bool [M], do not."""

    def add_running(self, result: SearchResult) -> SearchResult:
        """Return the result, whose sequences are the rows of the sample, with what was observed of them."""
        return result

    def add_finished(self, result: SearchResult) -> SearchResult:
        """Return the result, whose sequences are the best finished ones of beam search, with what was observed."""
        return result
