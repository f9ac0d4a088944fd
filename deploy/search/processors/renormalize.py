"""Log-probabilities that sum to 1 again after all other processors, with ``renormalize_logits``.

Source: transformers 5.24 `LogitNormalization`.

The rows need not be read if few likely tokens are banned. If the processors only ban tokens, each row's scores rise by
one number::

    shift = -log(1 - sum of the probabilities of the row's banned tokens)

The search head ranks the scores before that. Its best C are the best C after it, in another order perhaps, if the score
of the C-th after it is above the score of the (C + 1)-th before it by more than the largest shift.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.processors._forms import RowProcessor
from tightbeam.deploy.search.rows import Ranked, Rows, log_softmax

__all__ = ["renormalize", "renormalized"]

MOST = 0.01
"""Probability of a row's banned tokens from which its rows are read: an error of it would be one of the scores."""
LARGEST_SCORE = 1e4
"""Amount of a beam's score from which rounding hides the scores of its tokens."""


class Renormalize(RowProcessor):
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def process(self, scores: Floats, row: Ints, beginning: int) -> Floats:
        return log_softmax(scores) if scores.max() > -np.inf else scores

    def rank(self, rows: Rows, sample: int, beam_scores: Floats, found: Ranked) -> Ranked | None:
        if len(found[0]) == self._vocab_size:  # then there may be no candidate more than the search needs
            return None
        return renormalized(rows, sample, beam_scores, found)


def renormalize(options: GenerationOptions, source: Ints | None) -> RowProcessor | None:
    """The processor of ``renormalize_logits``."""
    return Renormalize(options.vocab_size) if options.renormalize else None


def renormalized(rows: Rows, sample: int, beam_scores: Floats, found: Ranked) -> Ranked | None:
    """Return the candidates of one sample after renormalisation.

    Parameters
    ----------
    rows : Rows
        The rows of the step.
    sample : int
        Index of the sample in the batch.
    beam_scores : float32 [M]
        Scores of its rows so far.
    found : scores float32, beams int64 and tokens int64 [C + 1]
        The search head's candidates, best first, one more than the search needs.

    Returns
    -------
    scores, beams, tokens [C + 1], or None
        The first C are right; the last one is only below them. None if the rows have to be read.
    """
    scores, beams, tokens = found
    M = len(beam_scores)
    shifts = np.zeros(M)
    for beam in range(M):
        banned = rows.banned_tokens(sample * M + beam)
        if banned is None:
            return None
        if not len(banned):
            continue
        logits = rows.logits[sample * M + beam]
        places = np.flatnonzero(beams == beam)
        if not len(places):  # all its tokens are below the candidates, and its highest logit bounds its shift
            total = float(logits.max())
        elif abs(beam_scores[beam]) < LARGEST_SCORE:
            place = places[0]
            total = float(logits[tokens[place]]) - (float(scores[place]) - float(beam_scores[beam]))
        else:
            return None
        mass = np.exp(logits[banned].astype(np.float64) - total).sum()
        if not mass < MOST:  # or NaN
            return None
        shifts[beam] = -np.log1p(-mass)
    shifted = (scores + shifts[beams]).astype(np.float32)
    order = np.lexsort((tokens, beams, -shifted))
    if not shifted[order[-2]] > scores[-1] + shifts.max():
        return None
    return shifted[order], beams[order], tokens[order]
