"""The base of the endings: what ends a sequence before its last length, and how a result names it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints

__all__ = ["Ending", "FinishReason"]

FinishReason: TypeAlias = Literal["end_token", "stop_string", "length", "cancelled"]
"""Reason why a sequence ended: by an end token, by a stop string, at its length limit, or because its sample was
cancelled."""


class Ending:
    """An ending of sequences: tokens that end any row, or a rule about rows and their next tokens.

    Attributes
    ----------
    reason : FinishReason
        The name of this ending in results.
    tokens : collection of int
        Tokens that end every row.
    by_row : bool
        True if `ends` has to be asked.
    """

    reason: FinishReason
    tokens: Collection[int] = ()
    by_row = False

    def ends(self, history: Ints, rows: Ints, tokens: Ints) -> Bools:
        """Return bool [X]: True for each token that ends its row.

        Parameters
        ----------
        history : int64 [M, T]
            A sample's rows.
        rows : int64 [X]
            The row that each token continues.
        tokens : int64 [X]
        """
        return np.zeros(len(tokens), np.bool_)
