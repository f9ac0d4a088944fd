"""Greedy search: always the best next token.

Source: transformers 5.23 `GenerationMixin._sample` with do_sample=False.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.generation import GenerationOptions
from tightbeam.deploy.search.bans import Bans, forced_candidates, forced_tokens
from tightbeam.deploy.search.step import SearchResult, Step, StepInputs


def greedy_search(step: Step, options: GenerationOptions, batch_size: int) -> SearchResult:
    """The sequences int64 [B, T] that take the best token at each position; scores are None.

    The batch runs until every row has met an end-of-sequence token or ``max_length`` is reached; a finished row goes
    on as padding.
    """
    eos = np.array(options.eos_token_ids, np.int64)
    bans = Bans(options)
    sequences = np.zeros((batch_size, 1, options.max_length), np.int64)  # [B, M = 1, T]
    sequences[:, :, 0] = options.decoder_start_token_id
    parents = np.zeros((batch_size, 1), np.int64)
    scores = np.zeros((batch_size, 1), np.float32)
    open_rows = np.ones(batch_size, np.bool_)

    for length in range(1, options.max_length):
        history = sequences[:, :, :length]
        candidates = step(StepInputs(history[:, :, -1], history, parents, scores, bans.banned(history)))
        if forced := forced_tokens(options, length):
            candidates = forced_candidates(options, forced, scores)
        tokens = candidates.tokens[:, 0]  # [B]
        if options.pad_token_id is not None:  # without an end-of-sequence token no row is ever closed
            tokens = np.where(open_rows, tokens, options.pad_token_id)
        sequences[:, 0, length] = tokens
        open_rows &= ~(tokens[:, None] == eos).any(axis=1)
        if not open_rows.any():
            break
    return SearchResult(sequences[:, 0, : length + 1], None)
