"""The nodes of a batch's rows in their trie, which follow the beams.

What may follow a row depends on its tokens from the length ``root`` on, behind start token, prompt and forced first
token, those of a beginning that is given among them: they lead from the root to its node. A row that has left the trie
stays at a node that nothing follows; it scores -inf from then on.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Ints, Nodes
from tightbeam.deploy.tries.trie import FREE, ROOT, Trie

__all__ = ["next_nodes"]


def next_nodes(trie: Trie, parents: Nodes, tokens: Ints, lengths: Ints, roots: Ints) -> Nodes:
    """Return the nodes int32 [B, M] of rows after a step.

    Parameters
    ----------
    trie : Trie
    parents : int32 [B, M]
        The nodes of the rows that they continue.
    tokens : int64 [B, M]
        The tokens that continue them.
    lengths : int64 [B]
        The tokens of the rows, these included.
    roots : int64 [B]
        The length at which each sample's rows are at the root.
    """
    short = (lengths - roots)[:, None]
    return np.where(short > 0, trie.follow(parents, tokens), np.where(short == 0, ROOT, FREE)).astype(np.int32)
