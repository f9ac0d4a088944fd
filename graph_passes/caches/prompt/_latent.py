"""What the passes share that keep one matrix of the prompt for each layer, keys and values at once."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock
from tightbeam.graph_passes.builder import MISSING, Builder, graph_input
from tightbeam.graph_passes.caches.prompt._prefix import PromptFlags, set_prefix
from tightbeam.graph_passes.caches.rotation import RotationTables
from tightbeam.graph_passes.model import ModelGraphs


class PromptLatents:
    """Attention of the decoder's layers over matrices of the prompt; ``kind``: what these are (``prior``)."""

    def __init__(self, graphs: ModelGraphs, build: Builder, kind: str) -> None:
        self.graphs = graphs
        self.build = build
        self.kind = kind
        self.flags = PromptFlags(graphs, build)
        self.tables = RotationTables(graphs, build)

    def attend(
        self,
        layer: int,
        block: AttentionBlock,
        queries: gs.Tensor,
        kept: gs.Tensor,
        name: str,
        width: int,
        scales: gs.Tensor | None = None,
    ) -> None:
        """Let ``queries`` [R, H, ...] of a layer read a tensor [B, N, width] of the prompt graph, which becomes its
        output ``name``; and factors on the scores [B, G, N], if any."""
        H, G = self.graphs.sizes.H, self.graphs.sizes.G
        states = self._output(kept, name, ["B", "N", width])
        attended = self.build.variable(f"attended_{layer}", ["R", H, width])
        lse = self.build.variable(f"lse_{layer}", ["R", H])
        inputs = [queries, states, self.flags.of(layer), *self.tables.of(block)]
        if scales is not None:
            inputs += [MISSING] * (5 - len(inputs))
            inputs.append(self._output(scales, f"source.{layer}.scale", ["B", G, "N"]))
        self.build.operator("LatentAttention", inputs, {"scale": block.scale}, [attended, lse])
        set_prefix(block, self.kind, self.build.reshape(attended, [-1, H * width]), lse)

    def _output(self, kept: gs.Tensor, name: str, shape: list[int | str]) -> gs.Tensor:
        encoder = self.graphs.encoder
        for index, tensor in enumerate(encoder.outputs):
            if tensor.name == name:
                tensor.name = f"{name}.by_head"
                encoder.outputs[index] = kept
                break
        else:
            encoder.outputs.append(kept)
        kept.name, kept.dtype, kept.shape = name, np.dtype(np.float32), shape
        return graph_input(self.graphs.decoder, name, np.float32, kept.shape)
