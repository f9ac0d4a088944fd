"""The best tokens in place of each token of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints

__all__ = ["TokenAlternatives"]

Pairs = list[tuple[int, float]] | None
"""Tokens and their scores, best first."""


@dataclass(frozen=True, eq=False)
class TokenAlternatives(Sequence[Pairs]):
    """For each token of a sequence a list of the best tokens and their scores, best first; None for a token that was
    not generated.

    The lists are made when they are asked for. As Python's objects a pair takes ten times as many bytes as in arrays,
    and what small objects leave free in a process returns to the system late.

    Attributes
    ----------
    generated : bool [T]
    tokens : int64 [T, n]
        -1 if fewer tokens may come.
    scores : float32 [T, n]
    """

    generated: Array
    tokens: Ints
    scores: Floats

    @classmethod
    def behind(cls, given: int, tokens: Ints, scores: Floats) -> TokenAlternatives:
        """Return the alternatives of a sequence that begins with some ``given`` tokens."""
        head = given, tokens.shape[1]
        return cls(
            np.arange(given + len(tokens)) >= given,
            np.concatenate([np.full(head, -1, tokens.dtype), tokens]),
            np.concatenate([np.zeros(head, scores.dtype), scores]),
        )

    @classmethod
    def join(cls, parts: Sequence[TokenAlternatives]) -> TokenAlternatives:
        """Return the alternatives of a sequence that consists of others."""
        n = max(part.tokens.shape[1] for part in parts)
        wide = [((0, 0), (0, n - part.tokens.shape[1])) for part in parts]
        return cls(
            np.concatenate([part.generated for part in parts]),
            np.concatenate([np.pad(p.tokens, pad, constant_values=-1) for p, pad in zip(parts, wide, strict=True)]),
            np.concatenate([np.pad(part.scores, pad) for part, pad in zip(parts, wide, strict=True)]),
        )

    @property
    def most(self) -> int:
        """The largest number of alternatives of a token."""
        return int((self.tokens >= 0).sum(axis=1).max(initial=0))

    def __len__(self) -> int:
        return len(self.generated)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[t] for t in range(*place.indices(len(self)))]
        if not self.generated[place]:
            return None
        pairs = zip(self.tokens[place].tolist(), self.scores[place].tolist(), strict=True)
        return [pair for pair in pairs if pair[0] >= 0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
