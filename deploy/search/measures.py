"""Log-probabilities of one sample's tokens while it is searched, and the probability that its window has no speech.

Source: transformers 5.23 `WhisperGenerationMixin._retrieve_avg_logprobs` and `WhisperNoSpeechDetection`. The
first is of the scores behind all processors, as probabilities of what these leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.generation.confidence import Confidence, Measured

__all__ = ["Measures"]


class Measures:
    """The measurements of one sample so far.

    Parameters
    ----------
    measured : Measured
        The quantities to measure.
    rows : int
        M.
    new_tokens : int
        New tokens of a row, at most.
    """

    def __init__(self, measured: Measured, rows: int, new_tokens: int) -> None:
        self._measured = measured
        self._logprobs = np.zeros((rows, new_tokens))  # of each row's tokens
        self._count = 0
        self._pool = np.full(rows, -np.inf)  # means of the finished sequences of beam search
        self._no_speech = 0.0
        self._rows: Sequence[Floats] = ()
        self._totals: dict[int, float] = {}

    def hear(self, length: int, logits: Array) -> None:
        """Take the logits [vocabulary] that follow a row's first ``length`` tokens, for that of no speech."""
        token = self._measured.no_speech
        if token is not None and length == self._measured.start + 1:
            row = logits.astype(np.float64)
            self._no_speech = float(np.exp(row[token] - row.max()) / np.exp(row - row.max()).sum())

    def set_rows(self, rows: Sequence[Floats]) -> None:
        """Take the scores float32 [vocabulary] of each row's next token; they are read until the next call."""
        self._rows, self._totals = rows, {}

    def logprob(self, row: int, token: int) -> float:
        """The log-probability of a token that continues a row."""
        scores = self._rows[row]
        if row not in self._totals:
            highest = scores.max()
            self._totals[row] = float(highest + np.log(np.exp(scores - highest).sum(dtype=np.float64)))
        return float(scores[token]) - self._totals[row]

    def extend(self, parents: Ints, tokens: Ints) -> None:
        """Continue the rows ``parents`` int64 [M] by ``tokens`` int64 [M]."""
        added = [self.logprob(row, token) for row, token in zip(parents.tolist(), tokens.tolist(), strict=True)]
        self._logprobs = self._logprobs[parents]
        self._logprobs[:, self._count] = added
        self._count += 1

    def take(self, kept: Bools, old: Ints, beams: Ints, tokens: Ints) -> None:
        """Replace the finished sequences: the ``old`` int64 [M] where ``kept`` bool [M], else candidates [M]."""
        n = self._count
        means = [
            (float(self._logprobs[beam, :n].sum()) + self.logprob(beam, token)) / (n + 1)
            for beam, token in zip(beams.tolist(), tokens.tolist(), strict=True)
        ]
        self._pool = np.where(kept, self._pool[old], means)

    def of_row(self, row: int = 0) -> Confidence:
        """The confidence of a running row."""
        return Confidence(float(self._logprobs[row, : self._count].mean()), self._no_speech)

    def of_pool(self) -> Confidence:
        """The confidence of the best finished sequence."""
        return Confidence(float(self._pool[0]), self._no_speech)
