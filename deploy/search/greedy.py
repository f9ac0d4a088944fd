"""Greedy search: the best next token at every position.

Source: transformers 5.23 `GenerationMixin._sample` with do_sample=False.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.bans import Bans, forced_candidates, forced_tokens
from tightbeam.deploy.search.callbacks import SearchCallback
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.step import SearchResult, Step, StepInputs


def greedy_search(step: Step, options: GenerationOptions, beginnings: Ints, callback: SearchCallback) -> SearchResult:
    """Continue ``beginnings`` int64 [B, P] by the best token at each position; arguments as of `search`.

    A sample is removed with its end-of-sequence token: `_sample` only pads it after that. The sequences int64 [B, T]
    are as long as the longest of them, at most ``max_length``. There are no scores.
    """
    batch_size, P = beginnings.shape
    eos = np.array(options.eos_token_ids, np.int64)
    bans = Bans(options)
    # Without a pad token there is no end-of-sequence token, and every row runs to max_length.
    sequences = np.full((batch_size, options.max_length), options.pad_token_id or 0, np.int64)  # [B, T]
    sequences[:, :P] = beginnings
    samples = np.arange(batch_size)  # [B'], the running ones, by place
    step.history[:, 0, :P] = beginnings

    for length in range(P, options.max_length):
        history = step.history[:, :, :length]  # [B', M = 1, length]
        scores = np.zeros((len(samples), 1), np.float32)
        parents = np.zeros((len(samples), 1), np.int64)
        candidates = step(StepInputs(history[:, :, -1], history, parents, scores, bans.banned(history)))
        if forced := forced_tokens(options, length):
            candidates = forced_candidates(options, forced, scores)
        tokens = candidates.tokens[:, 0]  # [B']
        sequences[samples, length] = tokens
        cancelled = callback.on_step(samples, tokens)
        ends = (tokens[:, None] == eos).any(axis=1)
        if length + 1 == options.max_length:
            ends[:] = True
        for sample in samples[ends & ~cancelled]:
            callback.on_finished(int(sample), SearchResult(sequences[sample : sample + 1, : length + 1], None))
        removed = ends | cancelled
        if removed.all():
            break
        step.history[:, 0, length] = tokens
        if removed.any():
            compaction = Compaction.of(removed)
            step.compact(compaction)
            samples = compaction.apply(samples)
    return SearchResult(sequences[:, : length + 1], None)
