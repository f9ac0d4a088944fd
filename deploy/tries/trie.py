"""A trie in compressed sparse rows: three flat arrays, which the search follows and the search head reads.

    entries  5 7 9        nodes     0 none   1 root   2: 5     3: 5 7   4: 5 8   5: 5 7 9
             5 8          offsets   0 0 1 3 4 4 4     the first edge of each node, and the number of edges at the end
             5 7          tokens    5   7 8   9       the token of each edge; edge e leads to node e + 2

Nodes are numbered level by level, and a node's edges in the order of their tokens. So the node that an edge leads to is
its number, and needs no array of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Ints, Nodes

__all__ = ["FREE", "ROOT", "Trie"]

FREE, ROOT = 0, 1
"""Node numbers: FREE is for rows that any token may follow; every entry begins at ROOT."""


@dataclass(frozen=True, eq=False, repr=False)
class Trie:
    """The token sequences that an output may be. Two tries are equal only if they are the same object.

    Attributes
    ----------
    offsets : int32 [Y + 3]
        The first of the Y edges of each node.
    tokens : int32 [Y]
        The token of each edge.
    vocabulary : int
        The largest token plus one.
    entries : int
        Number of different sequences.
    longest : int
        Tokens of the longest sequence.
    name : str
        The name in error messages, such as the file.
    """

    offsets: Nodes
    tokens: Nodes
    vocabulary: int
    entries: int
    longest: int
    name: str = "a trie"

    def __repr__(self) -> str:
        return f"<Trie {os.path.basename(self.name)}: {self.entries:,} entries>"

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.offsets.nbytes + self.tokens.nbytes

    @property
    def dead(self) -> int:
        """The last node, which no token follows. Rows that have left the trie are at this node too."""
        return len(self.tokens) + 1

    def children(self, node: int) -> Nodes:
        """Return the tokens int32 [X] that may follow at a node, ascending."""
        children: Nodes = self.tokens[self.offsets[node] : self.offsets[node + 1]]
        return children

    def follow(self, nodes: Nodes, tokens: Ints) -> Nodes:
        """Return the nodes that tokens lead to; `dead` if the trie has no such edge.

        Parameters
        ----------
        nodes : int32 [...]
        tokens : int64 [...]

        Returns
        -------
        int32 [...]
        """
        low, end = self.offsets[nodes].astype(np.int64), self.offsets[nodes + 1].astype(np.int64)
        high, last = end, len(self.tokens) - 1
        for _ in range(int((end - low).max(initial=0)).bit_length()):  # a binary search within each node
            middle = (low + high) // 2
            below = (low < high) & (self.tokens[np.minimum(middle, last)] < tokens)
            low, high = np.where(below, middle + 1, low), np.where(below, high, np.minimum(middle, high))
        found = (low < end) & (self.tokens[np.minimum(low, last)] == tokens)
        return np.where(found, low + 2, self.dead).astype(np.int32)
