"""Beam search: the M best sequences of each sample side by side.

Source: transformers 5.23 `GenerationMixin._beam_search`, whose results these are, in float32 and in its order of
operations. Scores that are out of the race are not removed but lowered by 1e9, as there.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.generation import GenerationOptions
from tightbeam.deploy.search.bans import Bans, forced_candidates, forced_tokens
from tightbeam.deploy.search.step import Bools, Candidates, Floats, Ints, SearchResult, Step, StepInputs, best

OUT = np.float32(-1e9)
IN = np.float32(0)


def beam_search(step: Step, options: GenerationOptions, batch_size: int) -> SearchResult:
    """The ``num_return_sequences`` best sequences of each sample, int64 [B * num_return_sequences, T], and the scores.

    Each step takes the C best continuations of a sample. Those that end (by an end-of-sequence token, or all of them
    at ``max_length``) are offered to the finished pool if they are among the first M; the M best of the others run on.
    The batch stops as a whole. Rows shorter than the longest returned one end in ``options.fill_token_id``.
    """
    B, M = batch_size, options.num_beams
    samples = np.arange(B)[:, None]
    eos = np.array(options.eos_token_ids, np.int64)
    bans = Bans(options)
    running = np.full((B, M, options.max_length), options.fill_token_id, np.int64)  # [B, M, T]
    running[:, :, 0] = options.decoder_start_token_id
    scores = np.full((B, M), OUT)  # [B, M]; all beams start equal, so only the first one counts
    scores[:, 0] = 0
    parents = np.tile(np.arange(M), (B, 1))  # [B, M]
    finished = Finished(running, options)

    for length in range(1, options.max_length):
        history = running[:, :, :length]
        candidates = step(StepInputs(history[:, :, -1], history, parents, scores, bans.banned(history)))
        if forced := forced_tokens(options, length):
            candidates = forced_candidates(options, forced, scores)

        ends = (candidates.tokens[:, :, None] == eos).any(axis=2)  # [B, C]
        if length + 1 == options.max_length:
            ends[:] = True
        finished.offer(candidates, ends, running, length)

        going_on = candidates.scores + np.where(ends, OUT, IN)  # [B, C]
        chosen = best(going_on, M)  # [B, M]
        scores = going_on[samples, chosen]
        parents = candidates.beams[samples, chosen]
        running[:, :, :length] = running[samples, parents, :length]
        running[:, :, length] = candidates.tokens[samples, chosen]

        finished.give_up_hope(scores, length)
        if finished.complete():
            break
    return finished.result()


class Finished:
    """The M best finished sequences of each sample so far, best first. A place not taken yet holds the score -1e9."""

    def __init__(self, running: Ints, options: GenerationOptions) -> None:
        B, M, _ = running.shape
        self.options = options
        self.sequences = running.copy()  # [B, M, T]
        self.lengths = np.zeros((B, M), np.int64)  # tokens after the start token
        self.scores = np.full((B, M), OUT)
        self.taken = np.zeros((B, M), np.bool_)
        self.hopeful = np.ones((B, 1), np.bool_)  # can the running beams still improve this sample?

    def offer(self, candidates: Candidates, ends: Bools, running: Ints, length: int) -> None:
        """Take in what has just ended [B, C], continuing the first ``length`` tokens of ``running`` [B, M, T]."""
        M = self.options.num_beams
        taken = ends.copy()
        taken[:, M:] = False  # the candidates after the first M are only there to keep M beams running
        full = self.taken.all(axis=1, keepdims=True) & (self.options.early_stopping is True)  # [B, 1]
        scores = candidates.scores / np.float32(length**self.options.length_penalty)  # [B, C]
        scores = scores + np.where(full, OUT, IN) + np.where(self.hopeful, IN, OUT) + np.where(taken, IN, OUT)

        merged = np.concatenate([self.scores, scores], axis=1)  # [B, M + C]
        chosen = best(merged, M)  # [B, M]
        if (chosen == np.arange(M)).all():
            return  # nothing came in
        samples = np.arange(len(chosen))[:, None]
        kept, old, new = chosen < M, np.minimum(chosen, M - 1), np.maximum(chosen - M, 0)  # [B, M]
        arrivals = running[samples, candidates.beams[samples, new]]  # [B, M, T]
        arrivals[:, :, length] = candidates.tokens[samples, new]
        self.sequences = np.where(kept[:, :, None], self.sequences[samples, old], arrivals)
        self.lengths = np.where(kept, self.lengths[samples, old], length)
        self.scores = merged[samples, chosen]
        self.taken = np.concatenate([self.taken, taken], axis=1)[samples, chosen]

    def give_up_hope(self, running_scores: Floats, length: int) -> None:
        """Close the samples whose best running beam, of ``length`` new tokens, cannot beat the worst finished one.

        The bound is exact only for "never"; else it takes the present length for the final one.
        """
        options = self.options
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = options.max_length - 1
        reachable = running_scores[:, :1] / np.float32(length**options.length_penalty)  # [B, 1]
        to_beat = np.where(self.taken, self.scores.min(axis=1, keepdims=True), OUT)  # [B, M]
        self.hopeful &= (reachable > to_beat).any(axis=1, keepdims=True)

    def complete(self) -> bool:
        """Whether no sample of the batch can change any more, or early stopping wants no change."""
        return not self.hopeful.any() or (self.options.early_stopping is True and bool(self.taken.all()))

    def result(self) -> SearchResult:
        """The first ``num_return_sequences`` of each sample, cut to the longest of them."""
        count = self.options.num_return_sequences
        longest = 1 + int(self.lengths[:, :count].max())
        sequences = self.sequences[:, :count, :longest].reshape(-1, longest)
        return SearchResult(sequences, self.scores[:, :count].reshape(-1))
