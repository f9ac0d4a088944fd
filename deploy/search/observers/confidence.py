"""Log-probabilities of one sample's tokens while it is searched, and the probability that its window has no speech.

Source: transformers 5.24 `WhisperGenerationMixin._retrieve_avg_logprobs` and `WhisperNoSpeechDetection`. The
first is of the scores behind all processors, as probabilities of what these leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.generation.confidence import Confidence, Measured
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.observers._observer import Observer, SampleStep
from tightbeam.deploy.search.rows import Rows
from tightbeam.deploy.search.step import SearchResult

__all__ = ["confidence"]


class ConfidenceMeasures(Observer):
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

    reads_rows = True

    def __init__(self, measured: Measured, rows: int, new_tokens: int) -> None:
        self._measured = measured
        self._logprobs = np.zeros((rows, new_tokens))  # of each row's tokens
        self._count = 0
        self._finished = np.full(rows, -np.inf)  # means of the finished sequences of beam search
        self._no_speech = 0.0
        self._scores_of: Callable[[int], Floats]
        self._rows: dict[int, tuple[Floats, float]] = {}  # of this step: a row's scores, and the log of their sum

    def on_decoder(self, length: int, rows: Rows, row: int) -> None:
        token = self._measured.no_speech
        if token is not None and length == self._measured.start + 1:
            logits = rows.logits[row].astype(np.float64)
            self._no_speech = float(np.exp(logits[token] - logits.max()) / np.exp(logits - logits.max()).sum())

    def on_step(self, step: SampleStep) -> None:
        self._scores_of, self._rows = step.possible_scores, {}

    def on_finished(self, kept: Bools, old: Ints, beams: Ints, tokens: Ints) -> None:
        n = self._count
        means = [
            (float(self._logprobs[beam, :n].sum()) + self._logprob(beam, token)) / (n + 1)
            for beam, token in zip(beams.tolist(), tokens.tolist(), strict=True)
        ]
        self._finished = np.where(kept, self._finished[old], means)

    def on_tokens(self, parents: Ints, tokens: Ints, ended: Bools) -> None:
        added = [self._logprob(row, token) for row, token in zip(parents.tolist(), tokens.tolist(), strict=True)]
        self._logprobs = self._logprobs[parents]
        self._logprobs[:, self._count] = added
        self._count += 1

    def _logprob(self, row: int, token: int) -> float:
        """The log-probability of a token that continues a row."""
        if row not in self._rows:
            scores = self._scores_of(row)
            highest = scores.max()
            self._rows[row] = scores, float(highest + np.log(np.exp(scores - highest).sum(dtype=np.float64)))
        scores, total = self._rows[row]
        return float(scores[token]) - total

    def add_running(self, result: SearchResult) -> SearchResult:
        mean = float(self._logprobs[0, : self._count].mean())
        return replace(result, confidence=Confidence(mean, self._no_speech))

    def add_finished(self, result: SearchResult) -> SearchResult:
        return replace(result, confidence=Confidence(float(self._finished[0]), self._no_speech))


def confidence(options: GenerationOptions, beginning: int) -> Observer | None:
    """The observer of the thresholds of a speech model: ``logprob_threshold``, ``no_speech_threshold``."""
    if options.measured is None:
        return None
    return ConfidenceMeasures(options.measured, options.num_beams, options.max_length - beginning)
