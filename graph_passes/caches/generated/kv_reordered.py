"""Generated cache ``kv-reordered``: keys and values concatenated in each step, and copied when beams are reordered.

    past.<l>.key - Concat(., new key) - Attention
    ->  past.<l>.key - Gather(beam_index) - Concat [- Slice(newest of a window)] - Attention

Kept for comparison; in a decoder-only model it goes with the prompt cache ``kv-per-beam`` alone. Needs: self-attentions
over ``past.<l>.key`` and ``past.<l>.value``. Cache: L M T (E + G V) numbers a sample, twice while it is copied; saves
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.graph_passes.attention import past_concat, self_attention
from tightbeam.graph_passes.builder import Builder, graph_input, tidy
from tightbeam.graph_passes.caches.kind import AttentionCost, GeneratedKind
from tightbeam.graph_passes.caches.prefix import CONCATENATED
from tightbeam.graph_passes.model import CacheState, ModelGraphs, PassResult

NAME = "self_reordered"
END = np.iinfo(np.int64).max
"""End of a Slice that takes all that is left."""


def self_reordered(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Give the decoder an input ``beam_index`` int64 [R]: the row of the last step that each row continues."""
    sizes = graphs.sizes
    decoder = graphs.decoder
    blocks = self_attention(graphs, NAME, layers)
    beam_index = graph_input(decoder, "beam_index", np.int64, ["R"])
    build = Builder(decoder, NAME)
    states = []
    for layer, block in blocks.items():
        assert block.past is not None
        for past, concat in zip(block.past, map(past_concat, block.node.inputs[1:3]), strict=True):
            assert concat is not None
            concat.inputs[0] = build.add("Gather", [past, beam_index], {"axis": 0})
        if graphs.window(layer) and not sizes.one_softmax:  # else the mask of ``kv-per-beam`` has the window
            newest = [build.constant([value]) for value in (-graphs.window(layer), END, 2)]
            for index in (1, 2):
                block.node.inputs[index] = build.add("Slice", [block.node.inputs[index], *newest])
        for part, width in (("key", sizes.K), ("value", sizes.V)):
            shape = ("R", sizes.G, "T", width)
            states.append(CacheState(f"past.{layer}.{part}", f"present.{layer}.{part}", "append", shape))
    tidy(decoder)
    graphs.states += tuple(states)
    return PassResult(NAME, len(blocks))


GENERATED_KV_REORDERED = GeneratedKind(
    name="kv-reordered",
    self_pass=self_reordered,
    prefixes=(CONCATENATED,),
    numbers=lambda sizes: sizes.key_value_numbers,
    reordered=True,
    attention=lambda sizes, r: AttentionCost(sizes.key_value_numbers, sizes.K + sizes.V),
)
