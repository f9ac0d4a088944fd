"""The rules of Whisper's timestamps.

Timestamps come in pairs, but for the first and the last one, and never decrease. If all of them together are more
likely than the best other token, one of them comes next. This last rule compares sums over a row, so that the search
head's candidates do not suffice.

Source: transformers 5.24 `WhisperTimeStampLogitsProcessor`.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.timestamps import TimestampRules
from tightbeam.deploy.search.processors._forms import RowProcessor

__all__ = ["apply_timestamp_rules", "timestamps"]

NEVER = np.float32(-np.inf)


class Timestamps(RowProcessor):
    def __init__(self, rules: TimestampRules) -> None:
        self._rules = rules

    def process(self, scores: Floats, row: Ints, beginning: int) -> Floats:
        scores = scores.copy()
        apply_timestamp_rules(self._rules, scores, row[beginning:])
        return scores


def timestamps(options: GenerationOptions, source: Ints | None) -> RowProcessor | None:
    """The rules of ``return_timestamps``."""
    return None if options.timestamps is None else Timestamps(options.timestamps)


def apply_timestamp_rules(rules: TimestampRules, scores: Floats, tokens: Ints) -> None:
    """Set the scores of tokens that must not come next to -inf.

    Parameters
    ----------
    rules : TimestampRules
    scores : float32 [vocabulary]
        Scores of a row with all other processors applied; changed in place.
    tokens : int64 [n]
        The row's tokens after its decoder prompt.
    """
    first = rules.first
    scores[first - 1] = NEVER
    if not len(tokens):
        scores[:first] = NEVER
        if rules.latest_start is not None:
            scores[first + rules.latest_start + 1 :] = NEVER
    elif len(stamps := tokens[tokens >= first]):
        closed = len(tokens) < 2 or tokens[-2] >= first  # the last two are a pair, if the last one is a timestamp
        opens = tokens[-1] >= first and not closed
        scores[first : stamps[-1] + (0 if opens else 1)] = NEVER
        if opens:
            scores[: rules.eos] = NEVER
        elif tokens[-1] >= first:
            scores[first:] = NEVER
    text, stamped = scores[:first], scores[first:]
    highest = stamped.max()
    if highest > NEVER and highest + np.log(np.exp(stamped - highest).sum()) > text.max():
        text[:] = NEVER
