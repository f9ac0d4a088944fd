"""Banned and forced tokens: the logits processors that need no logits, and run on the host.

Source: the processors of transformers 5.23 `generation/logits_process.py` for min_length, min_new_tokens,
encoder_no_repeat_ngram_size, bad_words_ids, suppress_tokens, begin_suppress_tokens, forced_bos_token_id and
forced_eos_token_id.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.rows import repeats
from tightbeam.deploy.search.step import Candidates, best


class Bans:
    """Banned tokens of every step of one run.

    Parameters
    ----------
    options : GenerationOptions
    source : int64 [N], optional
        The tokens of the source, whose n-grams are banned words under ``encoder_no_repeat_ngram_size``.
    """

    def __init__(self, options: GenerationOptions, source: Ints | None = None) -> None:
        banned_words = [*options.bad_words_ids, *_ngrams(source, options.encoder_no_repeat_ngram_size)]
        single = [word[0] for word in banned_words if len(word) == 1]
        self.single, self.ends, self.suppressed = single, options.eos_token_ids, options.suppress_tokens
        self.no_repeat_ngram_size = options.no_repeat_ngram_size
        always = {*options.suppress_tokens, *single}
        self.min_length = options.min_length
        self.always = np.array(sorted(always), np.int64)  # [P]
        self.while_short = np.array(sorted(always.union(options.eos_token_ids)), np.int64)  # [P], eos too
        self.begin = options.begin
        self.first = np.array(sorted(options.begin_suppress_tokens), np.int64)  # [P]
        longer = sorted({len(word) for word in banned_words if len(word) > 1})
        self.words = [np.array([word for word in banned_words if len(word) == n], np.int64) for n in longer]

    def fixed(self, length: int) -> Ints:
        """Return the tokens int64 [P] that must not follow any ``length`` tokens."""
        fixed = self.while_short if self.min_length > length else self.always
        return np.union1d(fixed, self.first) if self.begin == length and len(self.first) else fixed

    def banned(self, history: Ints) -> Ints:
        """Return the tokens int64 [B, M, P] that must not follow ``history`` int64 [B, M, T]; -1 is an unused entry."""
        B, M, T = history.shape
        fixed = self.fixed(T)
        parts = [np.empty((B, M, len(fixed)), np.int64)]
        parts[0][:] = fixed
        for words in self.words:  # [W, n], all words of one length
            prefix = words.shape[1] - 1
            if prefix <= T:
                matches = (history[:, :, None, T - prefix :] == words[:, :-1]).all(axis=-1)  # [B, M, W]
                seen = matches.any(axis=(0, 1))
                parts.append(np.where(matches[:, :, seen], words[seen, -1], -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)

    def left_by_trie(self, tokens: Array, history: Ints) -> tuple[Ints, Ints]:
        """Split what a trie allows after ``history`` int64 [T] by the processors before and behind that of a trie.

        Parameters
        ----------
        tokens : integers [X]
            The tokens that the trie allows.
        history : int64 [T]

        Returns
        -------
        before, behind : integers
            Those of the tokens that no processor before that of the trie bans, and those that none behind it does.
        """
        T = len(history)
        banned = [*self.single, *(self.ends if self.min_length > T else ())]
        ended = [
            words[(history[max(0, T + 1 - words.shape[1]) :] == words[:, :-1]).all(axis=1), -1]
            for words in self.words
            if words.shape[1] <= T + 1
        ]
        before = np.concatenate([np.array(banned, np.int64), repeats(history, self.no_repeat_ngram_size), *ended])
        behind = [*self.suppressed, *(self.first if self.begin == T else ())]
        return np.setdiff1d(tokens, before), np.setdiff1d(tokens, behind)

    def of_sample(self, history: Ints) -> Ints:
        """Return the tokens for one sample with ``history`` int64 [M, T]: int64 [M, P], or [P] for all rows."""
        return self.banned(history[None])[0] if self.words else self.fixed(history.shape[1])


def bans_of(options: GenerationOptions, source: Ints | None) -> Bans:
    """Return the bans of a sample: the same object for equal settings, where the ``source`` int64 [N] has no part in
    them."""
    if source is None or not options.encoder_no_repeat_ngram_size:
        return _bans_of_settings(options)
    return Bans(options, source)


@lru_cache(maxsize=256)
def _bans_of_settings(options: GenerationOptions) -> Bans:
    return Bans(options)


def _ngrams(source: Ints | None, size: int) -> set[tuple[int, ...]]:
    """The n-grams of a source int64 [N], or None, of this size; none for size 0."""
    if source is None or not size:
        return set()
    tokens = source.tolist()
    return set(zip(*(tokens[first:] for first in range(size)), strict=False))


def forced_tokens(options: GenerationOptions, length: int) -> tuple[int, ...]:
    """Return the only tokens that may follow ``length`` tokens, ascending; empty where none is forced."""
    forced: tuple[int, ...] = ()
    if length == 1 and options.forced_bos_token_id is not None:
        forced = (options.forced_bos_token_id,)
    if length == options.max_length - 1 and options.forced_eos_token_ids:
        forced = options.forced_eos_token_ids
    if not forced:
        return ()
    suppressed = {*options.suppress_tokens, *(options.begin_suppress_tokens if length == options.begin else ())}
    return tuple(sorted(set(forced) - suppressed))


def forced_candidates(options: GenerationOptions, tokens: tuple[int, ...], beam_scores: Floats) -> Candidates:
    """Return the candidates [B, C] where only ``tokens`` may follow, each with the token score of a forced one.

    ``beam_scores`` are [B, M], of all beams or of those of a group. All other tokens score -inf. They fill the
    remaining places, lowest (beam, token) first, so that only the first C of them matter.
    """
    M, C, vocabulary = beam_scores.shape[1], options.candidates, options.vocab_size
    pool, may_follow = _forced_pool(M, C, vocabulary, tokens)
    running = beam_scores[:, pool // vocabulary] + options.forced_score(len(tokens))  # [B, X]
    scores = np.where(may_follow, running, np.float32(-np.inf))
    chosen = best(scores, C)  # [B, C]
    flat = pool[chosen]
    return Candidates(np.take_along_axis(scores, chosen, axis=1), flat // vocabulary, flat % vocabulary)


@lru_cache(maxsize=64)
def _forced_pool(M: int, C: int, vocabulary: int, tokens: tuple[int, ...]) -> tuple[Ints, Bools]:
    """Positions int64 [X] in the M x vocabulary scores of a sample, ascending, and which of them may follow."""
    forced = {beam * vocabulary + token for beam in range(M) for token in tokens}
    places = sorted(forced.union(range(C)))
    return np.array(places), np.array([place in forced for place in places])
