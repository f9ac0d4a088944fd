"""Batches of inputs: inputs run together give the same result as each alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from tightbeam.deploy.generation.options import GenerationOptions

__all__ = ["batch_key", "batches"]

T = TypeVar("T")


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
        or options.repetition_penalty != 1
        or any((options.pad_token_id or 0) in word[:-1] for word in options.bad_words_ids)
        or options.forced_bos_token_id is not None  # it is forced after prompts of one token
    )
    new_tokens = options.max_length - length, max(0, options.min_length - length)
    return (*new_tokens, length) if sees_padding else new_tokens


def batches(
    items: Iterable[T],
    key: Callable[[T], Hashable],
    size: Callable[[T], int],
    order: Callable[[T], int] | None = None,
) -> Iterator[list[T]]:
    """Group items by key, and cut each group into batches.

    Parameters
    ----------
    items
        The inputs, in the order in which they came.
    key
        Function of an item; items of different keys are never in one batch.
    size
        Function of an item to the most items in a batch of its group.
    order
        Sort key within a group; by default items keep their order. Sorted by length, a batch has little padding.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    for group in groups.values():
        if order is not None:
            group.sort(key=order)
        count = size(group[0])
        for start in range(0, len(group), count):
            yield group[start : start + count]
