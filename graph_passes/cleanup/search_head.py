"""Append the search head: from the logits to the best C candidates of each sample, inside the decoder graph.

    ... -> logits [R, 1, vocabulary]
    ->  ... -> logits [R, vocabulary] - BeamTopK(., beam_scores, history, history_lengths, banned, ...)
                                        -> candidate_scores, candidate_beams, candidate_tokens [B, C]

In diverse beam search each group of a sample's beams has candidates: BeamTopK gets the groups as if each were a sample,
[B groups, M / groups]. So it has lengths of its own, ``history_lengths``. In a decoder-only model they include the
prompt, unlike the lengths of the caches.

Needs: the decoder output ``logits``. Saves host traffic: a step returns 20 B C bytes in place of 4 R x vocabulary. The
logits stay an output, which a runtime fetches if a search needs full score rows; it costs nothing otherwise. Operator:
``plugins/ops/beam_top_k``, which calls ``plugins/ops/ngram_block``.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, graph_input, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult, RunSize

NAME = "search_head"
LOGITS = "logits"

INPUTS: tuple[tuple[str, type, tuple[int | str, ...]], ...] = (
    ("beam_scores", np.float32, ("B groups", "M / groups")),
    ("history", np.int64, ("R", "T")),
    ("history_lengths", np.int32, ("B groups",)),
    ("banned", np.int64, ("R", "P")),
    ("normalize", np.bool_, ()),
    ("repetition_penalty", np.float32, ()),
    ("no_repeat_ngram_size", np.int64, ()),
    ("candidates", np.int64, (1,)),
    ("trie_offsets", np.int32, ("Y + 3",)),
    ("trie_tokens", np.int32, ("Y",)),
    ("trie_nodes", np.int32, ("R",)),
)
OUTPUTS: tuple[tuple[str, type], ...] = (
    ("candidate_scores", np.float32),
    ("candidate_beams", np.int64),
    ("candidate_tokens", np.int64),
)


def search_head(graphs: ModelGraphs) -> PassResult:
    """Put the outputs of BeamTopK before the decoder's output ``logits``; its inputs become graph inputs, in place.

    Every decoder has the inputs of a trie; without a trie they are empty, and cost nothing.
    """
    decoder = graphs.decoder
    logits = decoder.outputs[0]
    if logits.name != "logits":
        raise PassError(f"{NAME}: the decoder's first output is {logits.name}, expected logits")
    vocabulary = graphs.sizes.vocabulary
    build = Builder(decoder, NAME)
    inputs = [graph_input(decoder, name, dtype, shape) for name, dtype, shape in INPUTS]
    outputs = [gs.Variable(name, dtype=np.dtype(dtype), shape=["B groups", "candidates"]) for name, dtype in OUTPUTS]
    logits.name, logits.dtype, logits.shape = f"{NAME}.logits", None, None
    rows = build.rows(logits, vocabulary)
    rows.name, rows.dtype, rows.shape = LOGITS, np.dtype(np.float32), ["R", vocabulary]
    build.operator("BeamTopK", [rows, *inputs], {}, outputs)
    decoder.outputs = [*outputs, rows, *decoder.outputs[1:]]
    tidy(decoder)

    def saved(run: RunSize) -> int:
        return run.R * vocabulary * 4 - 20 * run.B * 2 * run.M

    return PassResult(NAME, 1, bytes_saved=saved)
