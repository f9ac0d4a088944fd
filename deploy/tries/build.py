"""Building a trie from token sequences, level by level in numpy: a node is a unique pair of parent and token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.tries.trie import ROOT, Trie

__all__ = ["build_trie"]

MOST_EDGES = (1 << 31) - 8
"""The most edges whose numbers, and the numbers of the nodes that they lead to, fit into int32."""
MOST_TOKENS = 1 << 31


def build_trie(
    entries: Array | Iterable[Sequence[int]], *, end_token_id: int | None = None, name: str = "a trie"
) -> Trie:
    """Build the trie of token sequences.

    Parameters
    ----------
    entries : integers [E, T], or iterable of sequences of int
        The sequences that the output may be, without the start token, the prompt and a forced first token.
    end_token_id : int, optional
        The token that ends a sequence, which is added to every entry that does not end with it. None adds nothing; an
        output then continues to the length limit, or until no token may follow.
    name : str
        The name of the trie in error messages.

    Returns
    -------
    Trie

    Raises
    ------
    InputError
        There are no entries, or an entry is empty or holds values that are not token ids.

    Examples
    --------
    >>> trie = build_trie([[5, 7, 9], [5, 8], [5, 7]], end_token_id=2)
    >>> trie.entries, trie.children(1).tolist(), trie.children(2).tolist()
    (3, [5], [7, 8])
    """
    tokens, lengths = _flat(entries)
    if end_token_id is not None:
        tokens, lengths = _ended(tokens, lengths, end_token_id)
    width = int(tokens.max()) + 1
    starts = np.cumsum(lengths) - lengths
    nodes = np.full(len(lengths), ROOT, np.int64)
    active, parents, edges, count = np.arange(len(lengths)), [], [], 0
    for depth in range(int(lengths.max())):
        keys, places = np.unique(nodes[active] * width + tokens[starts[active] + depth], return_inverse=True)
        parents.append(keys // width)
        edges.append((keys % width).astype(np.int32))
        nodes[active] = count + 2 + places
        count += len(keys)
        if count > MOST_EDGES:
            raise InputError(f"{name} has more than {MOST_EDGES:,} prefixes; split it")
        active = active[lengths[active] > depth + 1]
    offsets = np.zeros(count + 3, np.int32)
    np.cumsum(np.bincount(np.concatenate(parents), minlength=count + 2), out=offsets[1:])
    return Trie(offsets, np.concatenate(edges), width, len(np.unique(nodes)), int(lengths.max()), name)


def _flat(entries: Array | Iterable[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return all tokens int64 [X] of the entries, and the number of tokens of each, int64 [E]."""
    if isinstance(entries, np.ndarray) and entries.ndim == 2 and np.issubdtype(entries.dtype, np.integer):
        tokens, lengths = entries.astype(np.int64).reshape(-1), np.full(len(entries), entries.shape[1])
    else:
        listed = list(entries)
        try:
            lengths = np.fromiter(map(len, listed), np.int64, len(listed))
            joined = np.array(list(chain.from_iterable(listed)))
        except (TypeError, ValueError):
            joined = np.array(["no numbers"])
        if joined.size and not np.issubdtype(joined.dtype, np.integer):
            raise InputError("the entries of a trie hold values that are not integers; pass lists of token ids")
        tokens = joined.astype(np.int64)
    if not len(lengths):
        raise InputError("a trie needs at least one entry; pass lists of token ids")
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        raise InputError(f"entry {empty[0]} of the trie is empty; expected at least one token")
    if tokens.min() < 0 or tokens.max() >= MOST_TOKENS:
        wrong = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
        raise InputError(f"the entries of a trie hold {wrong}, which is not a token id; pass ids from 0 on")
    return tokens, lengths


def _ended(tokens: Ints, lengths: Ints, end: int) -> tuple[Ints, Ints]:
    """Return the entries with ``end`` as their last token."""
    ends = np.cumsum(lengths)
    lacking = tokens[ends - 1] != end
    return np.insert(tokens, ends[lacking], end), lengths + lacking
