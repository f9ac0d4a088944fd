"""What passes between the search on the host and the decoder graph, once per generated token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class StepInputs:
    """The running state, sent to the decoder. The arrays are the search's own: read them during the call only.

    Attributes:
        tokens: int64 [B, M], the last token of each row.
        history: int64 [B, M, T], all tokens of each row so far, the start token first and ``tokens`` last.
        parents: int64 [B, M], which beam of the previous step each row continues; the identity on the first step.
        beam_scores: float32 [B, M], the sum of the log-probabilities of each row; zeros for greedy search.
        banned: int64 [B, M, P], tokens that must not follow; -1 marks an unused entry; P differs from step to step
            and may be 0.
    """

    tokens: Ints
    history: Ints
    parents: Ints
    beam_scores: Floats
    banned: Ints


@dataclass(frozen=True)
class Candidates:
    """The C best continuations of each sample, best first; of equal scores the lower (beam, token) comes first.

    Attributes:
        scores: float32 [B, C], beam score plus token score.
        beams: int64 [B, C], which beam is continued.
        tokens: int64 [B, C], with which token.
    """

    scores: Floats
    beams: Ints
    tokens: Ints


Step: TypeAlias = Callable[[StepInputs], Candidates]
"""Runs the decoder and its search head once. What stays the same for the whole run (C, n-gram size, repetition
penalty, whether the scores are log-probabilities) is not sent; it stands in ``GenerationOptions``."""


@dataclass(frozen=True)
class SearchResult:
    """What a search returns.

    Attributes:
        sequences: int64 [B * num_return_sequences, T], the start token first, the best of a sample first.
        scores: float32 [B * num_return_sequences], or None for greedy search.
    """

    sequences: Ints
    scores: Floats | None


def best(scores: Floats, count: int) -> Ints:
    """The indices [B, count] of the highest scores [B, X] of each sample, best first, of equal ones the lower index."""
    order: Ints = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return order
