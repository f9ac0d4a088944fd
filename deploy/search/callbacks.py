"""Callbacks of a search: intermediate tokens, finished samples, and cancellation."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.search.step import SearchResult

__all__ = ["NullCallback", "SearchCallback", "check_callback"]


class SearchCallback(Protocol):
    """Receiver of a search's results while it runs. Samples are numbered 0..B-1, by their place in the batch."""

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        """Receive the tokens of one step, and cancel samples. Called after every step.

        Parameters
        ----------
        samples : int64 [B']
            The samples that ran in this step. Read it during the call only.
        tokens : int64 [B'] or None
            The token that each of them got; None in beam search. Read it during the call only.

        Returns
        -------
        bool [B']
            True for a cancelled sample. It is removed from the batch, and ``on_finished`` is not called for it.
        """
        ...

    def on_finished(self, sample: int, result: SearchResult) -> None:
        """Receive the result of one sample, as soon as no later step can change it.

        Parameters
        ----------
        sample : int
            The sample's place in the batch.
        result : SearchResult
            Its sequences [num_return_sequences, T], not padded to the longest of the batch.
        """
        ...


def check_callback(callback: object) -> None:
    """Raise InputError unless ``callback`` is a `SearchCallback`, or None, which is the default."""
    lacking = [name for name in ("on_step", "on_finished") if not callable(getattr(callback, name, None))]
    if isinstance(callback, type):
        raise InputError(
            f"callback is the class {callback.__name__}, expected an object of it; pass {callback.__name__}()"
        )
    if callback is not None and lacking:
        raise InputError(
            f"callback={callback!r} has no method {' and no '.join(lacking)}; pass an object with both, as "
            "tightbeam.deploy.search.SearchCallback has them"
        )


class NullCallback:
    """The `SearchCallback` that cancels nothing and ignores every result."""

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        return np.zeros(len(samples), np.bool_)

    def on_finished(self, sample: int, result: SearchResult) -> None: ...
