"""Interface between the search on the host and the decoder graph: one call of `Step` for each generated token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints, Nodes
from tightbeam.deploy.generation.confidence import Confidence
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.endings import FinishReason
from tightbeam.deploy.search.rows import Ranked, Rows
from tightbeam.deploy.search.token_scores import Alternatives, Scored

OUT = np.float32(-1e9)
"""Amount added to the score of an excluded sequence."""


@dataclass(frozen=True)
class StepInputs:
    """The running state of the B samples still in the batch. The arrays are valid during the call of `Step` only.

    Attributes
    ----------
    tokens : int64 [B, M]
        The last token of each row.
    history : int64 [B, M, T]
        All tokens of each row so far, from the start token or the prompt to ``tokens``: a view of the beginning of
        ``Step.history``. T is the largest of ``lengths``; what lies beyond a sample's own length does not count.
    lengths : int64 [B]
        Tokens of each sample's rows so far.
    parents : int64 [B, M]
        The beam of the previous step that each row continues; the identity in the first step.
    beam_scores : float32 [B, M]
        The sum of the log-probabilities of each row; zeros in greedy search.
    banned : int64 [B, M, P]
        Tokens that must not follow; -1 marks an unused entry. P differs from step to step and may be 0.
    nodes : int32 [B, M] or None
        The node of each row in the trie of the run; `FREE` if any token may follow. None is `FREE` for all rows.
    """

    tokens: Ints
    history: Ints
    lengths: Ints
    parents: Ints
    beam_scores: Floats
    banned: Ints
    nodes: Nodes | None = None


@dataclass(frozen=True)
class Candidates:
    """The C best continuations of each sample, best first; of equal scores the lower (beam, token) comes first.

    In diverse beam search they are [B, G C]: the C best ones of each of the G groups, one group after another, whose
    ``beams`` count from the first beam of the group.

    Attributes
    ----------
    scores : float32 [B, C]
        Beam score plus token score.
    beams : int64 [B, C]
        The beam that is continued.
    tokens : int64 [B, C]
        The token that continues it.
    rows : Rows or None
        All scores, if the step was asked for them.
    queries : floats [R, A, K] or None
        Queries of the alignment heads, if the step was asked for them; the next step overwrites them.
    """

    scores: Floats
    beams: Ints
    tokens: Ints
    rows: Rows | None = None
    queries: Array | None = None

    def of(self, sample: int) -> Ranked:
        """Return the candidates of one sample."""
        return self.scores[sample], self.beams[sample], self.tokens[sample]

    def first(self, count: int) -> Candidates:
        """Return the first ``count`` of each sample, or all if there are no more."""
        if self.scores.shape[1] <= count:
            return self
        parts = self.scores[:, :count], self.beams[:, :count], self.tokens[:, :count]
        return Candidates(*parts, self.rows, self.queries)

    def put(self, sample: int, ranked: Ranked) -> None:
        """Replace the candidates of one sample."""
        self.scores[sample], self.beams[sample], self.tokens[sample] = ranked

    def copy(self) -> Candidates:
        """Return candidates in arrays of their own, which may be changed."""
        return Candidates(self.scores.copy(), self.beams.copy(), self.tokens.copy(), self.rows, self.queries)


class Step(Protocol):
    """The decoder and its search head, run once a call.

    Constants of a run (C, n-gram size, repetition penalty, log-probabilities or logits) are in `GenerationOptions`.

    Attributes
    ----------
    history : int64 [B, M, T_history]
        Buffer for the tokens of each row, written by the search and read by the decoder. Unwritten entries must be
        token ids. The last token is never fed back, so T_history is the largest ``max_length`` - 1.
    """

    @property
    def history(self) -> Ints: ...

    def __call__(self, inputs: StepInputs) -> Candidates:
        """Run one step. The next call may overwrite the results."""
        ...

    def compact(self, compaction: Compaction) -> None:
        """Remove samples and their state, but not all. ``history`` is a view of the remaining samples from then on."""
        ...


@dataclass(frozen=True)
class SearchResult:
    """Generated sequences.

    Attributes
    ----------
    sequences : int64 [B * num_return_sequences, T]
        Each begins with the start token or the prompt. The best of a sample comes first.
    scores : float32 [B * num_return_sequences] or None
        None in greedy search and sampling.
    finish_reasons : tuple of FinishReason
        The reason why each sequence ended: "end_token", "stop_string", "length", or "cancelled" for the padding in the
        place of a cancelled sample.
    new_tokens : tuple of int
        The number of new tokens of each sequence, its end token included.
    scored : Scored
        The facts about single tokens that were asked for.
    confidence : Confidence or None
        The confidence of the only sample, if it is measured.
    language_probability : float or None
        Probability of the language that the model chose for the only sample, among its languages; None if the language
        was given, or the runtime does not give all scores of a step.
    token_timestamps : float32 [B * num_return_sequences, T] or None
        Seconds from the beginning of the window at which each token of a speech model ends; 0 for the prompt and behind
        the end. None without ``return_token_timestamps``.
    """

    sequences: Ints
    scores: Floats | None
    scored: Scored = field(default_factory=Scored)
    finish_reasons: tuple[FinishReason, ...] = ()
    new_tokens: tuple[int, ...] = ()

    @property
    def token_scores(self) -> Floats | None:
        """The scores of the new tokens.

        float32 [B * num_return_sequences, T], 0 behind the end of a sequence; None without ``return_token_scores`` and
        ``return_token_timestamps``.
        """
        return self.scored.tokens

    @property
    def alternatives(self) -> Alternatives | None:
        """The best tokens at the position of each new token; None without ``return_alternatives``."""
        return self.scored.alternatives

    @property
    def attentions(self) -> tuple[Floats, ...] | None:
        """The attention [n, N] of the n new tokens of each sequence to the N source tokens, by the mean of the
        alignment heads; None without ``return_attention`` and ``return_token_timestamps``."""
        aligned = self.scored.alignments
        return None if aligned is None else tuple(own.weights().mean(axis=0) for own in aligned)

    confidence: Confidence | None = None
    language_probability: float | None = None
    token_timestamps: Floats | None = None

    def of(self, sample: int, returned: int = 1) -> SearchResult:
        """Return the part of one sample.

        Parameters
        ----------
        sample : int
            The sample's place in the batch.
        returned : int
            Sequences of each sample.

        Returns
        -------
        SearchResult
        """
        own = slice(sample * returned, (sample + 1) * returned)
        scores = None if self.scores is None else self.scores[own]
        ends = self.finish_reasons[own], self.new_tokens[own]
        return SearchResult(self.sequences[own], scores, self.scored.rows(own), *ends)


def only_first_beams(M: int, size: int | None = None) -> Floats:
    """Return the scores [1, M] of rows before their first token, of groups of ``size`` beams; by default all are one.

    The beams of a group start equal, so that only the first one counts.
    """
    scores = np.full((1, M), OUT)
    scores[:, :: size or M] = 0
    return scores
