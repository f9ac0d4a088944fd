"""Forced tokens, and the candidates of a sample of which some tokens alone may follow.

Source: the processors of transformers 5.24 `generation/logits_process.py` for forced_bos_token_id and
forced_eos_token_id.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.processors._forms import Forcing
from tightbeam.deploy.search.rows import best
from tightbeam.deploy.search.step import Candidates

__all__ = ["forced_candidates", "forced_tokens"]

MOST_CACHED = 1 << 12
"""The most positions of an entry in the cache, whose arrays thus hold at most 2.4 MB."""


class ForcedTokens(Forcing):
    """The token after a row's first one, and the token at ``max_length``."""

    def __init__(self, second: tuple[int, ...], last: tuple[int, ...], max_length: int) -> None:
        self._second, self._last, self._max_length = second, last, max_length

    def only(self, length: int) -> tuple[int, ...]:
        if length == self._max_length - 1 and self._last:
            return self._last
        return self._second if length == 1 else ()


def forced_tokens(options: GenerationOptions, source: Ints | None) -> Forcing | None:
    """The tokens of ``forced_bos_token_id`` and ``forced_eos_token_id``."""
    second = () if options.forced_bos_token_id is None else (options.forced_bos_token_id,)
    last = options.forced_eos_token_ids
    return ForcedTokens(second, last, options.max_length) if second or last else None


def forced_candidates(options: GenerationOptions, tokens: tuple[int, ...], beam_scores: Floats) -> Candidates:
    """Return the candidates of samples of which ``tokens`` alone may follow.

    Parameters
    ----------
    options : GenerationOptions
    tokens : tuple of int
        Each has the token score of a forced one.
    beam_scores : float32 [B, M]
        The scores of all beams, or of the beams of one group.

    Returns
    -------
    Candidates
        [B, C]. All other tokens score -inf. They fill the remaining places, lowest (beam, token) first, so that only
        the first C of them matter.
    """
    M, C, vocabulary = beam_scores.shape[1], options.candidates, options.vocab_size
    make = _forced_positions if M * len(tokens) + C <= MOST_CACHED else _forced_positions.__wrapped__
    positions, may_follow = make(M, C, vocabulary, tokens)
    running = beam_scores[:, positions // vocabulary] + options.forced_score(len(tokens))  # [B, X]
    scores = np.where(may_follow, running, np.float32(-np.inf))
    chosen = best(scores, C)  # [B, C]
    flat = positions[chosen]
    return Candidates(np.take_along_axis(scores, chosen, axis=1), flat // vocabulary, flat % vocabulary)


@lru_cache(maxsize=64)
def _forced_positions(M: int, C: int, vocabulary: int, tokens: tuple[int, ...]) -> tuple[Ints, Bools]:
    """Positions int64 [X] in the M x vocabulary scores of a sample, ascending, and which of them may follow."""
    forced = {beam * vocabulary + token for beam in range(M) for token in tokens}
    positions = sorted(forced.union(range(C)))
    return np.array(positions), np.array([position in forced for position in positions])
