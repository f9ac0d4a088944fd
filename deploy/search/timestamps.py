"""Score processor of Whisper's timestamps, and candidates that are ranked by whole rows of scores.

Timestamps come in pairs, but for the first and the last one, and never decrease; where all of them together are more
likely than the best other token, one of them comes next. The last rule compares sums over a row, so that the search
head's candidates do not suffice.

Source: transformers 5.23 `WhisperTimeStampLogitsProcessor`, which is the last processor of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.generation.timestamps import TimestampRules
from tightbeam.deploy.search.rows import largest
from tightbeam.deploy.search.step import best

__all__ = ["apply_timestamp_rules", "candidates_of_rows"]

NEVER = np.float32(-np.inf)


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
    text, timestamps = scores[:first], scores[first:]
    highest = timestamps.max()
    if highest > NEVER and highest + np.log(np.exp(timestamps - highest).sum()) > text.max():
        text[:] = NEVER


def candidates_of_rows(scores: Sequence[Floats], beam_scores: Floats, count: int) -> tuple[Floats, Ints, Ints]:
    """Rank the continuations of one sample, as the operator ``BeamTopK`` does.

    Parameters
    ----------
    scores : sequence of M arrays, float32 [vocabulary]
        Processed scores of its rows.
    beam_scores : float32 [M]
        Scores of the rows so far.
    count : int
        C, at most the vocabulary.

    Returns
    -------
    scores : float32 [C]
    beams : int64 [C]
    tokens : int64 [C]
    """
    tokens = np.stack([largest(row, count)[:count] for row in scores])  # [M, C]
    own = np.stack([row[chosen] for row, chosen in zip(scores, tokens, strict=True)])
    totals = (own + beam_scores[:, None]).reshape(1, -1)
    order = best(totals, count)[0]
    return totals[0, order], order // count, tokens.reshape(-1)[order]
