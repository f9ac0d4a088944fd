"""Settings of the scores of single tokens: which of them a result has, and how they are normalized.

Source: transformers 5.24 `GenerationMixin.compute_transition_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tightbeam.deploy.errors import Fix, Setting
from tightbeam.deploy.generation.fields import TIMES
from tightbeam.deploy.generation.settings import Settings

__all__ = ["MOST_ALTERNATIVES", "Scoring", "read_scoring"]

MOST_ALTERNATIVES = 1 << 22
"""Bound on the alternatives that a search holds, of all new tokens of all beams. Each takes 12 bytes."""


@dataclass(frozen=True)
class Scoring:
    """Scores of single tokens that a result has.

    Attributes
    ----------
    tokens : bool
        True for the score of each token.
    alternatives : int
        The number of best tokens at each position, with their scores; 0 gives none.
    normalize : bool
        True for the log-softmax of the scores that the search chose by.
    times : bool
        True for what the times of tokens are made of.
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


def read_scoring(settings: Settings, *, log_probabilities: bool) -> Scoring | None:
    """Read the settings of tokens' scores.

    Parameters
    ----------
    settings : Settings
    log_probabilities : bool
        True if the search chooses by log-probabilities (beams), which are normalized only if a setting asks for it.

    Returns
    -------
    Scoring or None
        None if no scores are asked for.

    Raises
    ------
    GenerationError
        A value is out of range, or does nothing.
    """
    tokens, alternatives, normalize = (
        settings[name] for name in ("return_token_scores", "return_alternatives", "normalize_logits")
    )
    if alternatives > settings.vocab_size:
        problem = "is more than a position can have"
        raise settings.error("return_alternatives", problem, fix=f"pass {settings.vocab_size} or less")
    if not tokens and not alternatives:
        if normalize is None:
            return None
        fix = Fix("pass {} too, or leave it out", Setting("return_token_scores", True))
        problem = "does nothing without return_token_scores or return_alternatives"
        raise settings.error("normalize_logits", problem, fix=fix)
    default = not log_probabilities
    renormalized = default and settings["renormalize_logits"]
    return Scoring(tokens, alternatives, (default if normalize is None else normalize) or renormalized)
