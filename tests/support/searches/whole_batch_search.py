"""Reference searches as in transformers 5.24: the batch stops as a whole, without compaction."""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search import SearchResult, StepInputs
from tightbeam.deploy.search.processors import processors_of
from tightbeam.deploy.search.processors.forced_tokens import forced_candidates
from tightbeam.deploy.search.rows import best
from tightbeam.deploy.search.step import Step

OUT = np.float32(-1e9)


def search_together(step: Step, options: GenerationOptions, batch_size: int) -> SearchResult:
    """Search like `_sample` or `_beam_search`, with the names used there."""
    run = _sample if options.num_beams == 1 else _beam_search
    return run(step, options, batch_size)


def _sample(step: Step, options: GenerationOptions, B: int) -> SearchResult:
    processors = processors_of(options, None)
    input_ids = np.full((B, 1, options.max_length), options.prompt[0])
    unfinished = np.ones(B, np.bool_)
    for cur_len in range(1, options.max_length):
        history = input_ids[:, :, :cur_len]
        step.history[:, :, :cur_len] = history
        zeros = np.zeros((B, 1))
        candidates = step(
            StepInputs(
                history[:, :, -1],
                history,
                np.full(B, cur_len),
                zeros.astype(np.int64),
                zeros.astype(np.float32),
                processors.banned(history),
            )
        )
        if forced := processors.forced(cur_len):
            candidates = forced_candidates(options, forced, zeros.astype(np.float32))
        next_tokens = candidates.tokens[:, 0]
        if options.eos_token_ids:
            assert options.pad_token_id is not None
            next_tokens = next_tokens * unfinished + options.pad_token_id * ~unfinished
        input_ids[:, 0, cur_len] = next_tokens
        unfinished &= ~np.isin(next_tokens, options.eos_token_ids)
        if not unfinished.any():
            break
    return SearchResult(input_ids[:, 0, : cur_len + 1], None)


def _beam_search(step: Step, options: GenerationOptions, B: int) -> SearchResult:
    M, samples = options.num_beams, np.arange(B)[:, None]
    early_stopping, length_penalty = options.early_stopping, options.length_penalty
    processors = processors_of(options, None)
    running_sequences = np.full((B, M, options.max_length), options.fill_token_id)
    running_sequences[:, :, 0] = options.prompt[0]
    sequences = running_sequences.copy()
    running_beam_scores = np.full((B, M), OUT)
    running_beam_scores[:, 0] = 0
    beam_scores = np.full((B, M), OUT)
    lengths = np.zeros((B, M), np.int64)
    is_sent_finished = np.zeros((B, M), np.bool_)
    heuristic_unsatisfied = np.ones((B, 1), np.bool_)
    parents = np.tile(np.arange(M), (B, 1))

    for cur_len in range(1, options.max_length):
        history = running_sequences[:, :, :cur_len]
        step.history[:, :, :cur_len] = history
        candidates = step(
            StepInputs(
                history[:, :, -1],
                history,
                np.full(B, cur_len),
                parents,
                running_beam_scores,
                processors.banned(history),
            )
        )
        if forced := processors.forced(cur_len):
            candidates = forced_candidates(options, forced, running_beam_scores)
        topk_sequences = running_sequences[samples, candidates.beams]
        topk_sequences[:, :, cur_len] = candidates.tokens
        hits = np.isin(candidates.tokens, options.eos_token_ids) | (cur_len + 1 == options.max_length)

        topk_running = candidates.scores + np.where(hits, OUT, np.float32(0))
        chosen = best(topk_running, M)
        running_sequences = topk_sequences[samples, chosen]
        running_beam_scores = topk_running[samples, chosen]
        parents = candidates.beams[samples, chosen]

        finished_now = hits & (np.arange(hits.shape[1]) < M)
        topk = candidates.scores / np.float32(cur_len**length_penalty)
        full = is_sent_finished.all(axis=1, keepdims=True) & (early_stopping is True)
        for refused in (full, ~heuristic_unsatisfied, ~finished_now):
            topk = topk + np.where(refused, OUT, np.float32(0))
        chosen = best(np.concatenate([beam_scores, topk], axis=1), M)
        sequences = np.concatenate([sequences, topk_sequences], axis=1)[samples, chosen]
        lengths = np.concatenate([lengths, np.full(topk.shape, cur_len)], axis=1)[samples, chosen]
        beam_scores = np.concatenate([beam_scores, topk], axis=1)[samples, chosen]
        is_sent_finished = np.concatenate([is_sent_finished, finished_now], axis=1)[samples, chosen]

        longest = options.max_length - 1 if early_stopping == "never" and length_penalty > 0 else cur_len
        possible = running_beam_scores[:, :1] / np.float32(longest**length_penalty)
        worst = np.where(is_sent_finished, beam_scores.min(axis=1, keepdims=True), OUT)
        heuristic_unsatisfied &= (possible > worst).any(axis=1, keepdims=True)
        if not heuristic_unsatisfied.any() or (early_stopping is True and is_sent_finished.all()) or hits.all():
            break
    count = options.num_return_sequences
    longest = 1 + int(lengths[:, :count].max())
    return SearchResult(sequences[:, :count, :longest].reshape(-1, longest), beam_scores[:, :count].reshape(-1))
