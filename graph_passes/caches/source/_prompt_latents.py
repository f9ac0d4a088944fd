"""Attention over a prompt cache of one matrix a layer, read as keys and as values."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock
from tightbeam.graph_passes.builder import MISSING, Builder, graph_input
from tightbeam.graph_passes.caches.cached_keys import RotationTables
from tightbeam.graph_passes.caches.key_bias import KeyBias
from tightbeam.graph_passes.caches.prefix import set_prefix
from tightbeam.graph_passes.caches.source_inputs import PromptFlags
from tightbeam.graph_passes.model import ModelGraphs


class PromptLatents:
    """LatentAttention of the decoder's layers over matrices of the prompt; ``form`` is the form of its output."""

    def __init__(self, graphs: ModelGraphs, build: Builder, form: str) -> None:
        self.graphs = graphs
        self.build = build
        self.form = form
        self.flags = PromptFlags(graphs, build)
        self.tables = RotationTables(graphs, build)
        self.bias = KeyBias(graphs, build)

    def attend(
        self,
        layer: int,
        block: AttentionBlock,
        queries: gs.Tensor,
        matrix: gs.Tensor,
        name: str,
        width: int,
        scales: gs.Tensor | None = None,
    ) -> None:
        """Give a layer the prefix of its attention over the prompt.

        Parameters
        ----------
        layer, block
            The layer and its self-attention in the decoder.
        queries
            [R, H, K] or [R, H, width], a decoder tensor.
        matrix
            [B, N, width], a tensor of the prompt graph, which becomes its output ``name``.
        name, width
            Name and width of the cache.
        scales
            Factors of the scores [B, G, N], a tensor of the prompt graph, if keys have a norm.
        """
        H, G = self.graphs.sizes.H, self.graphs.sizes.G
        states = self._output(matrix, name, ["B", "N", width])
        attended = self.build.variable(f"attended_{layer}", ["R", H, width])
        lse = self.build.variable(f"lse_{layer}", ["R", H])
        rotation = [] if self.graphs.sizes.merged else self.tables.of(block, layer)  # a merged source has no positions
        inputs = [queries, states, self.flags.of(layer), *rotation]
        if scales is not None:
            inputs += [MISSING] * (5 - len(inputs))
            inputs.append(self._output(scales, f"source.{layer}.scale", ["B", G, "N"]))
        if bias := self.bias.table():
            inputs += [MISSING] * (6 - len(inputs)) + bias
        self.build.operator("LatentAttention", inputs, block.attributes, [attended, lse])
        set_prefix(block, self.form, self.build.reshape(attended, [-1, H * width]), lse)

    def _output(self, tensor: gs.Tensor, name: str, shape: list[int | str]) -> gs.Tensor:
        """Make a tensor of the prompt graph its output ``name``, in place of another of that name."""
        encoder = self.graphs.encoder
        for index, output in enumerate(encoder.outputs):
            if output.name == name:
                output.name = f"{name}.by_head"
                encoder.outputs[index] = tensor
                break
        else:
            encoder.outputs.append(tensor)
        tensor.name, tensor.dtype, tensor.shape = name, np.dtype(np.float32), shape
        return graph_input(self.graphs.decoder, name, np.float32, tensor.shape)
