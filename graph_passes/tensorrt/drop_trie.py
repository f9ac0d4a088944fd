"""Remove the inputs of a trie from the search head, since no GPU kernel reads them.

    BeamTopK(..., candidates, trie_offsets, trie_tokens, trie_nodes)    ->    BeamTopK(..., candidates)

Needs: nothing. Saves three inputs of an engine.
"""

from __future__ import annotations

from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "drop_trie"
TRIE = frozenset({"trie_offsets", "trie_tokens", "trie_nodes"})


def drop_trie(graphs: ModelGraphs) -> PassResult:
    """Remove the last inputs of BeamTopK where they are a trie's, and these inputs of the decoder, in place."""
    decoder, matched = graphs.decoder, 0
    for node in decoder.nodes:
        if node.op == "BeamTopK" and TRIE & {tensor.name for tensor in node.inputs}:
            node.inputs = [tensor for tensor in node.inputs if tensor.name not in TRIE]
            matched += 1
    decoder.inputs = [tensor for tensor in decoder.inputs if tensor.name not in TRIE]
    return PassResult(NAME, matched, "" if matched else "the search head takes no trie")
