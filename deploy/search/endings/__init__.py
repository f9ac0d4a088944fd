"""Endings: what ends a sequence before its last length. One file an ending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.settings_cache import SettingsCache
from tightbeam.deploy.search.endings._ending import Ending, FinishReason
from tightbeam.deploy.search.endings.end_tokens import end_tokens
from tightbeam.deploy.search.endings.stop_strings import stop_strings

__all__ = ["ENDINGS", "Ending", "Endings", "FinishReason", "endings_of"]

Maker: TypeAlias = Callable[[GenerationOptions], Ending | None]
"""Makes an ending from the settings of a sample; returns None if the settings do not ask for it."""

ENDINGS: tuple[Maker, ...] = (end_tokens, stop_strings)
"""All endings. If several end a sequence at once, the first one is its reason."""


class Endings:
    """The endings of one sample.

    Parameters
    ----------
    entries : sequence of Ending
        In the order of `ENDINGS`.
    options : GenerationOptions

    Attributes
    ----------
    tokens : tuple of int
        Tokens that end every row.
    by_row : list of Ending
        The endings that have to be asked for each row.
    """

    def __init__(self, entries: Sequence[Ending], options: GenerationOptions) -> None:
        self._entries, self._longest = entries, options.max_length
        self._forced = options.forced_eos_token_ids
        self.tokens = tuple(token for entry in entries for token in entry.tokens)
        self.by_row = [entry for entry in entries if entry.by_row]

    def reason(self, sequence: Ints) -> FinishReason:
        """Return the reason why a sequence int64 [T] ended with its last token.

        It is the length if that token was forced by ``forced_eos_token_id``, too.
        """
        token = int(sequence[-1])
        if len(sequence) == self._longest and token in self._forced:
            return "length"
        row, last = sequence[None, :-1], sequence[-1:]
        for entry in self._entries:
            if token in entry.tokens or (entry.by_row and entry.ends(row, np.zeros(1, np.int64), last)[0]):
                return entry.reason
        return "length"


@SettingsCache
def endings_of(options: GenerationOptions) -> Endings:
    """Return the endings of a sample: the same object for equal settings."""
    made = (maker(options) for maker in ENDINGS)
    return Endings([entry for entry in made if entry is not None], options)
