"""Confidence of a speech model in a window's text: the quantities measured while it generates, and the result."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Confidence", "Measured"]


@dataclass(frozen=True)
class Measured:
    """Quantities to measure.

    Attributes
    ----------
    start : int
        The place of the start token in the decoder prompt.
    no_speech : int or None
        The token whose probability after the start token is the probability of no speech.
    """

    start: int
    no_speech: int | None


@dataclass(frozen=True)
class Confidence:
    """Confidence in the best sequence.

    Attributes
    ----------
    mean_logprob : float
        Mean log-probability of its new tokens, the end token included, each among those that the processors allow.
    no_speech : float
        Probability of no speech; 0 if it is not measured.
    """

    mean_logprob: float
    no_speech: float
