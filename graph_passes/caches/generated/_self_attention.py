"""Parts shared by the passes whose generated caches never move: projections, caches, and the operator's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, project_together, self_attention
from tightbeam.graph_passes.builder import MISSING, Builder, graph_input, remove_inputs, tidy
from tightbeam.graph_passes.caches.cached_keys import RotationTables
from tightbeam.graph_passes.caches.generated._two_streams import TwoStreams, pairs_of_heads
from tightbeam.graph_passes.caches.key_bias import KeyBias
from tightbeam.graph_passes.caches.prefix import prefix_of, share_query
from tightbeam.graph_passes.model import CacheState, ModelGraphs, PassError
from tightbeam.plugins.ops.beam_attention import BEAM_ATTENTION


@dataclass
class SelfAttentionCaches:
    """Self-attention of some layers, while a pass replaces its past by caches that never move.

    The decoder gets the inputs ``ancestry`` int32 [B, M, T] and ``lengths`` int32 [B], and, by :meth:`cache`, an input
    ``cache.<l>.<part>`` followed by an output ``cache_out.<l>.<part>`` in the same buffer. :meth:`attend` adds the
    operator that reads a layer's caches, and :meth:`finish` removes the pasts.
    """

    graphs: ModelGraphs
    pass_name: str
    layers: Sequence[int] | None
    blocks: dict[int, AttentionBlock] = field(init=False)
    build: Builder = field(init=False)
    history: list[gs.Tensor] = field(init=False)
    """``ancestry`` and ``lengths``"""
    states: list[CacheState] = field(init=False, default_factory=list)
    written: list[gs.Variable] = field(init=False, default_factory=list)
    biases: dict[str, gs.Constant] = field(init=False, default_factory=dict)
    tables: RotationTables = field(init=False)
    key_bias: KeyBias = field(init=False)
    streams: TwoStreams | None = field(init=False)

    def __post_init__(self) -> None:
        decoder = self.graphs.decoder
        self.blocks = self_attention(self.graphs, self.pass_name, self.layers)
        self.build = Builder(decoder, self.pass_name)
        self.tables = RotationTables(self.graphs, self.build)
        self.key_bias = KeyBias(self.graphs, self.build)
        ancestry = graph_input(decoder, "ancestry", np.int32, ["B", "M", "T"])
        self.history = [ancestry, graph_input(decoder, "lengths", np.int32, ["B"])]
        self.streams = TwoStreams(self.graphs, self.build, ancestry) if self.graphs.sizes.streams > 1 else None

    def cache(self, layer: int, part: str, heads: int, width: int) -> tuple[gs.Variable, gs.Variable]:
        """A cache [R, heads, T_max, width]: the decoder input, and the output that follows it."""
        shape: tuple[int | str, ...] = ("R", heads, "T_max", width)
        state = CacheState(f"cache.{layer}.{part}", f"cache_out.{layer}.{part}", "in_place", shape)
        written = gs.Variable(state.output, dtype=np.dtype(np.float32), shape=list(shape))
        self.states.append(state)
        self.written.append(written)
        return graph_input(self.graphs.decoder, state.input, np.float32, shape), written

    def projected(self, block: AttentionBlock) -> gs.Tensor:
        """The new token's queries, keys and values side by side, [R, H K + G (K + V)].

        With two-stream self-attention there are queries of both streams, 2 H K.
        """
        sizes = self.graphs.sizes
        widths = [sizes.H * sizes.K, sizes.G * sizes.K, sizes.G * sizes.V]
        if block.between:
            assert block.new is not None
            parts = zip((block.node.inputs[0], *block.new), widths, strict=True)
            return self.build.add("Concat", [self.build.rows(*part) for part in parts], {"axis": 1})
        projections = (block.query, block.key, block.value)
        together = self.build.rows(project_together(self.build, projections, block.node.name), sum(widths))
        if self.streams is not None:
            return self.streams.projected(block, together)
        if sizes.one_softmax:
            query, rest = (gs.Variable(f"{block.node.name}.{part}") for part in ("query", "rest"))
            two_widths = self.build.constant([widths[0], sum(widths[1:])])
            self.build.add("Split", [together, two_widths], {"axis": 1}, [query, rest])
            share_query(block, query)
        return together

    def newest(
        self, block: AttentionBlock, query: gs.Tensor, X: int, row: gs.Tensor, width: int
    ) -> tuple[gs.Tensor, gs.Tensor]:
        """The new token's queries [R, H X] and row [R, width] as an operator takes them.

        With two-stream self-attention there are queries of both streams, [R, 2 H X].
        """
        return (query, row) if self.streams is None else self.streams.newest(block, query, X, row, width)

    def attend(
        self,
        op: str,
        layer: int,
        inputs: Sequence[gs.Tensor],
        caches: Sequence[gs.Tensor],
        width: int,
        form: str,
        before_rotation: bool = False,
        last: Sequence[gs.Tensor] = (),
    ) -> gs.Tensor:
        """Append a layer's operator, with its distance bias and its prefix, if it has them.

        Parameters
        ----------
        op
            Operator of ``plugins/ops``.
        layer
            The layer.
        inputs
            Inputs before ``ancestry``.
        caches
            Outputs after the first.
        width
            Width of the output of one head.
        form
            Form of the output, and of the prefix (``prefix.py``).
        before_rotation
            The operator rotates queries and keys itself, if the layer has rotary positions.
        last
            Inputs after the optional ones that all such operators share.

        Returns
        -------
        gs.Tensor
            [R, H width], or [2 R, H width] with two-stream self-attention.
        """
        block, sizes = self.blocks[layer], self.graphs.sizes
        attended = self.build.variable(f"attended_{layer}", ["R", sizes.streams * sizes.H * width])
        bias = MISSING if block.distance_bias is None else self._by_head(block.distance_bias)
        rotation = self._rotation(layer, block) if before_rotation else [MISSING] * 3
        optional = [*rotation, bias, *self._prefix(layer, block, form)]
        if last:
            optional += [MISSING] * (len(BEAM_ATTENTION.optional) - len(optional)) + list(last)
        while optional and optional[-1] is MISSING:
            optional.pop()
        attributes = {**block.attributes, "window": self.graphs.window(layer)}
        self.build.operator(op, [*inputs, *self.history, *optional], attributes, [attended, *caches])
        return attended if self.streams is None else pairs_of_heads(self.build, attended, sizes.H, width)

    def finish(self) -> None:
        """Replace the pasts among the decoder's inputs and outputs by the caches."""
        decoder = self.graphs.decoder
        gone = {f"present.{layer}.{part}" for layer in self.blocks for part in ("key", "value")}
        decoder.outputs = [tensor for tensor in decoder.outputs if tensor.name not in gone] + self.written
        tidy(decoder)
        for block in self.blocks.values():
            assert block.past is not None
            for past in block.past:
                self._read_elsewhere(past)
            remove_inputs(decoder, [past.name for past in block.past])
        if not any(tensor.outputs for tensor in decoder.inputs if tensor.name == "positions"):
            remove_inputs(decoder, ["positions"])
        self.graphs.states += tuple(self.states)

    def _by_head(self, table: gs.Constant) -> gs.Constant:
        """A distance bias [Y, H], which layers may share, as the operators take it, [H, Y]."""
        if table.name not in self.biases:
            self.biases[table.name] = self.build.constant(table.values.T, np.float32)
        return self.biases[table.name]

    def _prefix(self, layer: int, block: AttentionBlock, form: str) -> list[gs.Tensor]:
        if self.streams is not None:
            return self.streams.optional(block)
        if not self.graphs.sizes.one_softmax:
            return []
        prefix = prefix_of(self.build, self.graphs, self.pass_name, layer, block, form)
        return prefix + self.key_bias.by_distance(self.history[0])

    def _rotation(self, layer: int, block: AttentionBlock) -> list[gs.Tensor]:
        """Cosines, sines and first positions for a layer; missing if no layer of the model is rotated."""
        tables = self.tables.of(block, layer)
        if not tables:
            return [MISSING] * 3
        return [*tables, graph_input(self.graphs.decoder, "first_positions", np.int32, ["B"])]

    def _read_elsewhere(self, past: gs.Tensor) -> None:
        """Let nodes that read the sizes of a past read them from another input.

        The tokens have as many rows. The pasts of other layers have the same length, which distance biases read.
        """
        inputs = self.graphs.decoder.inputs
        gone = {past.name for block in self.blocks.values() for past in block.past or ()}
        with_rows = [tensor for tensor in inputs if tensor.name == "tokens"]
        with_length = [tensor for tensor in inputs if tensor.name.startswith("past.") and tensor.name not in gone]
        for node in list(past.outputs):
            axis = node.attrs.get("start", 0)
            others = {0: with_rows, 2: with_length}.get(axis, [])
            if node.op != "Shape" or node.attrs.get("end", 4) != axis + 1 or not others:
                raise PassError(f"{self.pass_name}: {node.op} {node.name} reads {past.name} beside its attention")
            node.inputs = [others[0]]
