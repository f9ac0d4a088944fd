"""The nodes of a batch's rows in their trie, and what follows if all tokens of a trie are banned.

What may follow a row depends on its tokens from the length ``root`` on, behind start token, prompt and forced first
token. Tokens of a beginning that is given are among them. They lead from the root to the row's node. A row that has
left the trie stays at a node that nothing follows, and scores -inf from then on.

Source: transformers 5.24 `PrefixConstrainedLogitsProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tightbeam.deploy.arrays import Array, Bools, Floats, Ints, Nodes
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.processors._forms import TriePlace
from tightbeam.deploy.tries.trie import FREE, ROOT, Trie

__all__ = ["TrieRows", "next_nodes", "trie"]


def trie(options: GenerationOptions, source: Ints | None) -> TriePlace | None:
    """The place of ``trie``."""
    return None if options.trie is None else TriePlace()


class TrieRows:
    """The rows of a batch in the trie that all its samples share.

    Parameters
    ----------
    trie : Trie or None
        None for a batch whose rows may be followed by any token.
    num_beams : int
        M.

    Attributes
    ----------
    nodes : int32 [B, M]
        The node of each row; `FREE` without a trie, and before a sample's length ``root``.
    """

    def __init__(self, trie: Trie | None, num_beams: int) -> None:
        self._trie = trie
        self.nodes: Nodes = np.zeros((0, num_beams), np.int32)
        self._roots = np.zeros(0, np.int64)  # [B]: the length at which each sample's rows are at the root

    def join(self, options: GenerationOptions, length: int) -> None:
        """Add a sample whose rows have ``length`` tokens."""
        node = ROOT if self._trie is not None and length >= options.root else FREE
        self.nodes = np.concatenate([self.nodes, np.full((1, self.nodes.shape[1]), node, np.int32)])
        self._roots = np.append(self._roots, options.root)

    def follow(self, index: Ints, parents: Ints, tokens: Ints, lengths: Ints) -> None:
        """Let each row continue the row of its sample, int64 [B, 1], that ``parents`` int64 [B, M] names, by one of
        ``tokens`` int64 [B, M]; ``lengths`` int64 [B] count these."""
        if self._trie is not None:
            self.nodes = next_nodes(self._trie, self.nodes[index, parents], tokens, lengths, self._roots)

    def compact(self, compaction: Compaction) -> None:
        """Remove samples."""
        self.nodes, self._roots = compaction.apply(self.nodes), compaction.apply(self._roots)

    def without_candidates(self, scores: Floats, prompted: Bools) -> list[int]:
        """The samples of which no candidate may come.

        Parameters
        ----------
        scores : float32 [B, C]
            The candidates' scores, best first.
        prompted : bool [B]
            True for a sample that does not count.

        Returns
        -------
        list of int
            Empty without a trie.
        """
        if self._trie is None:
            return []
        found: list[int] = np.flatnonzero(np.isneginf(scores[:, 0]) & ~prompted).tolist()
        return found

    def last_resort(
        self,
        index: int,
        beams: Sequence[int],
        rows: Sequence[Ints],
        left_by_trie: Callable[[Array, Ints], tuple[Ints, Ints]],
    ) -> list[Ints] | None:
        """The tokens that rows of a sample go on by, each with the score of a forced token, if all that the trie allows
        is banned.

        transformers forces them if no row of a sample has another token. So the trie outweighs the processors before it
        (repeated n-grams, bad words, least lengths), and gives way to the processors behind it (suppressed tokens).

        Parameters
        ----------
        index : int
            The sample's place.
        beams : sequence of int
            Its rows that are searched together.
        rows : sequence of int64 [T]
            Their tokens.
        left_by_trie : function
            `Processors.left_by_trie` of the sample.

        Returns
        -------
        list of integers [X], or None
            The tokens of each row. None if something else may follow, and if the trie is not begun or has ended.
        """
        if self._trie is None or self.nodes[index, 0] == FREE:
            return None
        children = [self._trie.children(int(self.nodes[index, beam])) for beam in beams]
        split = [left_by_trie(tokens, row) for tokens, row in zip(children, rows, strict=True)]
        if any(len(before) for before, _ in split):
            return None
        return [behind for _, behind in split] if any(len(behind) for _, behind in split) else None


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
