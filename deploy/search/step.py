"""What passes between the search on the host and the decoder graph, once per generated token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.search.compaction import Compaction


@dataclass(frozen=True)
class StepInputs:
    """The running state of the B samples still in the batch, sent to the decoder. Read the arrays during the call only.

    Attributes:
        tokens: int64 [B, M], the last token of each row.
        history: int64 [B, M, T], all tokens of each row so far, start token or prompt first and ``tokens`` last; a
            view of the beginning of ``Step.history``.
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


class Step(Protocol):
    """Runs the decoder and its search head once. What stays the same for the whole run (C, n-gram size, repetition
    penalty, whether the scores are log-probabilities) is not sent; it stands in ``GenerationOptions``.

    Attributes:
        history: int64 [B, M, max_length - 1], where the search keeps the tokens of each row; the decoder reads them
            there. All zero at first: what is not written yet must be a token id. The last token is never fed back.
    """

    history: Ints

    def __call__(self, inputs: StepInputs) -> Candidates:
        """One step. The results may be buffers, which the next step overwrites."""
        ...

    def compact(self, compaction: Compaction) -> None:
        """Let samples go, with all that belongs to them; ``history`` is a view of the samples left from then on."""
        ...


@dataclass(frozen=True)
class SearchResult:
    """What a search returns.

    Attributes:
        sequences: int64 [B * num_return_sequences, T], the start token or the prompt first, the best of a
            sample first.
        scores: float32 [B * num_return_sequences], or None for greedy search.
    """

    sequences: Ints
    scores: Floats | None

    def of(self, sample: int, returned: int = 1) -> SearchResult:
        """The part of one sample, of whose sequences so many were ``returned``."""
        own = slice(sample * returned, (sample + 1) * returned)
        return SearchResult(self.sequences[own], None if self.scores is None else self.scores[own])


def best(scores: Floats, count: int) -> Ints:
    """The indices [B, count] of the highest scores [B, X] of each sample, best first, of equal ones the lower index."""
    order: Ints = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return order
