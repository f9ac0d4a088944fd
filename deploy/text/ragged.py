"""Rows of token ids of different lengths, in place of an array."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search import Scored, SearchResult

__all__ = ["batch_key", "join_results", "ragged_rows"]


def ragged_rows(input_ids: Any) -> list[list[int]] | None:
    """Read a list of rows of different lengths.

    Parameters
    ----------
    input_ids
        Anything that `Runner.generate` is given.

    Returns
    -------
    list of list of int, or None
        None for everything but a list of rows whose lengths differ.

    Raises
    ------
    InputError
        The rows hold something else than integers, or one is empty.
    """
    if not isinstance(input_ids, list | tuple):
        return None
    rows = [row.tolist() if getattr(row, "ndim", 0) == 1 else row for row in input_ids]  # arrays and tensors
    if not all(isinstance(row, list | tuple) for row in rows) or len({len(row) for row in rows}) < 2:
        return None
    for index, row in enumerate(rows):
        wrong = [token for token in row if isinstance(token, bool) or not isinstance(token, Integral)]
        if wrong or not len(row):
            held = f"holds {type(wrong[0]).__name__}" if wrong else "is empty"
            raise InputError(f"row {index} of input_ids {held}, expected integers; pass a row of token ids a sample")
    return [[int(token) for token in row] for row in rows]


def batch_key(options: GenerationOptions, length: int) -> tuple[int, ...]:
    """Key of a decoder-only model's prompt: prompts of equal keys may be padded to a common length and run together.

    Padding counts as part of a row in every limit of a sequence's length, so the tokens that a prompt leaves of these
    limits are in its key. Settings that look back at a row's tokens, or at the prompt's length, see the padding too:
    with them the key holds the length itself.

    Parameters
    ----------
    options
        The options for a prompt of this length.
    length
        Tokens of the prompt.
    """
    sees_padding = (
        options.no_repeat_ngram_size > 0
        or options.encoder_no_repeat_ngram_size > 0
        or options.repetition_penalty != 1
        or any((options.pad_token_id or 0) in word[:-1] for word in options.bad_words_ids)
        or options.forced_bos_token_id is not None  # it is forced after prompts of one token
    )
    new_tokens = options.max_length - length, max(0, options.min_length - length)
    return (*new_tokens, length) if sees_padding else new_tokens


def join_results(
    results: Sequence[tuple[Sequence[int], int, SearchResult]], options: GenerationOptions
) -> SearchResult:
    """Join the results of batches whose prompts have different lengths.

    Parameters
    ----------
    results : sequence of (samples, P, SearchResult)
        For each batch: the numbers of its samples, the length P of its prompts, and the result.
    options : GenerationOptions

    Returns
    -------
    SearchResult
        The samples in the order of their numbers. Prompts are padded on the left to the longest, new tokens on the
        right.
    """
    returned = options.num_return_sequences
    prompts = max(P for _, P, _ in results)
    new = max(found.sequences.shape[1] - P for _, P, found in results)
    count = sum(len(samples) for samples, _, _ in results) * returned
    fill = options.fill_token_id if options.normalize and options.eos_token_ids else options.pad_token_id or 0
    sequences = np.full((count, prompts + new), fill, np.int64)
    sequences[:, :prompts] = options.pad_token_id or 0
    scores = None if results[0][2].scores is None else np.zeros(count, np.float32)
    scored: list[tuple[list[int], Scored]] = []
    for samples, P, found in results:
        rows = [sample * returned + index for sample in samples for index in range(returned)]
        sequences[rows, prompts - P : prompts - P + found.sequences.shape[1]] = found.sequences
        if scores is not None:
            scores[rows] = found.scores
        scored.append((rows, found.scored))
    return SearchResult(sequences, scores, Scored.join(scored, count))
