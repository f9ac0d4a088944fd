"""Beam search: the M best sequences of each sample side by side.

Source: transformers 5.23 `GenerationMixin._beam_search`. The results are the same, in float32 and in its order of
operations. Scores of excluded candidates are lowered by 1e9, as there.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.bans import Bans, forced_candidates, forced_tokens
from tightbeam.deploy.search.callbacks import SearchCallback
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.step import Candidates, SearchResult, Step, StepInputs, best

OUT = np.float32(-1e9)
IN = np.float32(0)


def beam_search(step: Step, options: GenerationOptions, beginnings: Ints, callback: SearchCallback) -> SearchResult:
    """Continue ``beginnings`` int64 [B, P] by the ``num_return_sequences`` best sequences of each sample.

    Each step takes the C best continuations of a sample. Those that end (by an end-of-sequence token, or all of them
    at ``max_length``) are offered to the finished pool if they are among the first M; the M best of the others run on.
    A sample is removed when its pool is final; the batch of `_beam_search` stops as a whole. Rows shorter than the
    longest returned one are filled with ``options.fill_token_id``. Arguments as of `search`.
    """
    (B, P), M = beginnings.shape, options.num_beams
    eos = np.array(options.eos_token_ids, np.int64)
    bans = Bans(options)
    step.history[:, :, :P] = beginnings[:, None]
    scores = np.full((B, M), OUT)  # [B, M]; all beams start equal, so only the first one counts
    scores[:, 0] = 0
    parents = np.tile(np.arange(M), (B, 1))  # [B, M]
    finished = Finished(beginnings, options)

    for length in range(P, options.max_length):
        running = step.history  # [B', M, T_max], the remaining samples
        history = running[:, :, :length]
        candidates = step(StepInputs(history[:, :, -1], history, parents, scores, bans.banned(history)))
        if forced := forced_tokens(options, length):
            candidates = forced_candidates(options, forced, scores)
        cancelled = callback.on_step(finished.running, None)

        ends = (candidates.tokens[:, :, None] == eos).any(axis=2)  # [B', C]
        if length + 1 == options.max_length:
            ends[:] = True
        finished.offer(candidates, ends, history)
        if length + 1 == options.max_length:
            finished.report(callback, ~cancelled)
            break

        chosen = _open_candidates(candidates, ends, M)
        scores, parents = chosen.scores, chosen.beams
        history[:] = history[np.arange(len(running))[:, None], parents]
        running[:, :, length] = chosen.tokens

        final = finished.final(scores, length + 1 - P)
        removed = final | cancelled
        if removed.any():
            finished.report(callback, final & ~cancelled)
            if removed.all():
                break
            compaction = Compaction.of(removed)
            step.compact(compaction)
            finished.running = compaction.apply(finished.running)
            scores, parents = compaction.apply(scores), compaction.apply(parents)
    return finished.result()


def _open_candidates(candidates: Candidates, ends: Bools, count: int) -> Candidates:
    """Return the best candidates [B', count] in arrays of their own; those that end, bool [B', C], come last."""
    scores, beams, tokens = candidates.scores, candidates.beams, candidates.tokens
    if not ends.any():  # in order already
        return Candidates(scores[:, :count].copy(), beams[:, :count].copy(), tokens[:, :count].copy())
    scores = scores + np.where(ends, OUT, IN)
    order = best(scores, count)
    samples = np.arange(len(order))[:, None]
    return Candidates(scores[samples, order], beams[samples, order], tokens[samples, order])


class Finished:
    """Pools of the M best finished sequences of each sample, best first. An empty place has the score -1e9.

    The pools of all samples are in the order of the batch. ``running`` int64 [B'] lists the samples still in the batch,
    by place; ``offer`` and ``final`` are about these.

    Finality of a pool. A sample is hopeless when its best running beam cannot beat its worst finished sequence; it
    stays hopeless. `_beam_search` lowers by 1e9 the offers to a hopeless sample, and those to a full pool under
    early_stopping=True. Scores are sums of log-probabilities, at most 0, so such an offer is at most -1e9 in float32.
    A pool holds nothing lower, since it begins with -1e9 and only improves, and of equal scores the older wins: the
    offer is rejected. For the same reason a place is taken where its score is above -1e9. The batch of `_beam_search`
    ends when every sample is hopeless, or all pools are full under early_stopping=True, hence not before each pool is
    final by the same rule. Later steps change nothing, not even the padding, which depends on the returned sequences
    alone.
    """

    def __init__(self, beginnings: Ints, options: GenerationOptions) -> None:
        (B, self.P), M = beginnings.shape, options.num_beams
        self.options = options
        self.sequences = np.full((B, M, options.max_length), options.fill_token_id, np.int64)  # [B, M, T]
        self.sequences[:, :, : self.P] = beginnings[:, None]
        self.lengths = np.zeros((B, M), np.int64)  # new tokens
        self.scores = np.full((B, M), OUT)
        self.running = np.arange(B)

    def offer(self, candidates: Candidates, ends: Bools, history: Ints) -> None:
        """Offer the candidates that end, bool [B', C], to the pools. They continue ``history`` [B', M, length]."""
        M, length = self.options.num_beams, history.shape[2]
        taken = ends[:, :M]  # the candidates after the first M are only there to keep M beams running
        if not taken.any():
            return
        new = length + 1 - self.P
        scores = candidates.scores[:, :M] / np.float32(new**self.options.length_penalty)  # [B', M]
        scores = scores + np.where(taken, IN, OUT)

        merged = np.concatenate([self.scores[self.running], scores], axis=1)  # [B', 2 M]
        chosen = best(merged, M)  # [B', M]
        if (chosen == np.arange(M)).all():
            return  # no offer was accepted
        places = np.arange(len(chosen))[:, None]
        samples = self.running[:, None]
        kept, old, came = chosen < M, np.minimum(chosen, M - 1), np.maximum(chosen - M, 0)  # [B', M]
        arrivals = np.full((*chosen.shape, self.options.max_length), self.options.fill_token_id, np.int64)
        arrivals[:, :, :length] = history[places, candidates.beams[places, came]]
        arrivals[:, :, length] = candidates.tokens[places, came]
        self.sequences[self.running] = np.where(kept[:, :, None], self.sequences[samples, old], arrivals)
        self.lengths[self.running] = np.where(kept, self.lengths[samples, old], new)
        self.scores[self.running] = merged[places, chosen]

    def final(self, running_scores: Floats, length: int) -> Bools:
        """Return bool [B'], True for a sample whose pool is final.

        That is so when its best running beam, of ``length`` new tokens, cannot beat its worst finished sequence, or
        when its pool is full under early_stopping=True. The bound is exact only for "never"; otherwise it takes the
        present length for the final one, as `_beam_search` does.
        """
        options = self.options
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = options.max_length - self.P
        worst = self.scores[self.running, -1]  # [B']
        final: Bools = running_scores[:, 0] / np.float32(length**options.length_penalty) <= worst
        return final | (worst > OUT) if options.early_stopping is True else final

    def report(self, callback: SearchCallback, which: Bools) -> None:
        """Report those of the running samples, bool [B'], whose results are final."""
        for sample in self.running[which].tolist():
            callback.on_finished(sample, self.result(slice(sample, sample + 1)))

    def result(self, samples: slice = slice(None)) -> SearchResult:
        """Return the first ``num_return_sequences`` sequences of ``samples``, cut to the longest of them."""
        count = self.options.num_return_sequences
        longest = self.P + int(self.lengths[samples, :count].max())
        sequences = self.sequences[samples, :count, :longest].reshape(-1, longest)
        return SearchResult(sequences, self.scores[samples, :count].reshape(-1))
