"""Settings of the scores of single tokens: which of them a result has, and how they are normalised.

Source: transformers 5.23 `GenerationMixin.compute_transition_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tightbeam.deploy.generation.fields import Fields

__all__ = ["TIMES", "Scoring", "read_scoring"]

TIMES = "return_token_timestamps"
"""The setting of a speech model that asks for the times of its tokens."""
MOST_ALTERNATIVES = 1024
"""Bound on the alternatives of a position."""


@dataclass(frozen=True)
class Scoring:
    """Scores of single tokens that a result has.

    Attributes
    ----------
    tokens : bool
        The score of each token.
    alternatives : int
        The best tokens at each position, with their scores; 0 for none.
    normalize : bool
        Log-softmax of the scores that the search chose by.
    times : bool
        What the times of tokens are made of.
    """

    tokens: bool
    alternatives: int
    normalize: bool
    times: bool = False

    @property
    def asked(self) -> str:
        """The setting that asks for it, as errors show it."""
        if self.times:
            return f"{TIMES}=True"
        return "return_token_scores=True" if self.tokens else f"return_alternatives={self.alternatives}"


def read_scoring(fields: Fields, *, log_probabilities: bool) -> Scoring | None:
    """Read the settings of tokens' scores; None where none are asked for.

    Parameters
    ----------
    fields : Fields
    log_probabilities : bool
        True where the search chooses by log-probabilities (beams), which are normalised where the call says so alone.

    Raises
    ------
    GenerationError
        A value is out of range, or does nothing.
    """
    tokens = fields.flag("return_token_scores", default=False)
    alternatives = fields.integer("return_alternatives", 0, minimum=0)
    most = min(MOST_ALTERNATIVES, fields.vocab_size)
    if alternatives > most:
        raise fields.error("return_alternatives", "is more than a position can have", f"pass {most} or less")
    normalize = fields.flag("normalize_logits", default=not log_probabilities)
    normalize |= not log_probabilities and bool(fields.get("renormalize_logits", False))
    if tokens or alternatives:
        return Scoring(tokens, alternatives, normalize)
    if "normalize_logits" in fields:
        fix = "pass return_token_scores=True too, or leave it out"
        raise fields.error("normalize_logits", "does nothing without return_token_scores or return_alternatives", fix)
    return None
