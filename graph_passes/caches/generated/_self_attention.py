"""What the self-attention passes share: projections in one product, and the caches of the generated part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, Projection, self_attention
from tightbeam.graph_passes.builder import MISSING, Builder, graph_input, remove_inputs, tidy
from tightbeam.graph_passes.caches.bytes import generated_bytes
from tightbeam.graph_passes.caches.generated._two_streams import Streams, pairs_of_heads
from tightbeam.graph_passes.caches.prompt._prefix import prefix_of, share_query
from tightbeam.graph_passes.caches.rotation import RotationTables
from tightbeam.graph_passes.model import CacheState, ModelGraphs, PassError, RunSize, Sizes
from tightbeam.plugins.ops.beam_attention import BEAM_ATTENTION


@dataclass
class SelfAttentionCaches:
    """The self-attentions of some layers, on their way from a past to caches that never move.

    Makes the decoder inputs ``ancestry`` int32 [B, M, T] and ``lengths`` int32 [B], and, with :meth:`cache`, inputs
    ``cache.<l>.<part>``, each followed by an output ``cache_out.<l>.<part>`` that belongs in the same buffer.
    :meth:`attend` adds the operator that reads a layer's caches, and :meth:`finish` takes the pasts away.
    """

    graphs: ModelGraphs
    pass_name: str
    layers: Sequence[int] | None
    blocks: dict[int, AttentionBlock] = field(init=False)
    build: Builder = field(init=False)
    history: list[gs.Tensor] = field(init=False)
    states: list[CacheState] = field(init=False, default_factory=list)
    written: list[gs.Variable] = field(init=False, default_factory=list)
    biases: dict[str, gs.Constant] = field(init=False, default_factory=dict)
    tables: RotationTables = field(init=False)
    streams: Streams | None = field(init=False)

    def __post_init__(self) -> None:
        decoder = self.graphs.decoder
        self.blocks = self_attention(self.graphs, self.pass_name, self.layers)
        self.build = Builder(decoder, self.pass_name)
        self.tables = RotationTables(self.graphs, self.build)
        ancestry = graph_input(decoder, "ancestry", np.int32, ["B", "M", "T"])
        self.history = [ancestry, graph_input(decoder, "lengths", np.int32, ["B"])]
        self.streams = Streams(self.graphs, self.build, ancestry) if self.graphs.sizes.streams > 1 else None

    def cache(self, layer: int, part: str, heads: int, width: int) -> tuple[gs.Variable, gs.Variable]:
        """A cache [R, heads, T_max, width]: the decoder input, and the output that follows it."""
        shape: tuple[int | str, ...] = ("R", heads, "T_max", width)
        state = CacheState(f"cache.{layer}.{part}", f"cache_out.{layer}.{part}", "in_place", shape)
        written = gs.Variable(state.output, dtype=np.dtype(np.float32), shape=list(shape))
        self.states.append(state)
        self.written.append(written)
        return graph_input(self.graphs.decoder, state.input, np.float32, shape), written

    def attend(
        self,
        op: str,
        layer: int,
        inputs: Sequence[gs.Tensor],
        caches: Sequence[gs.Tensor],
        width: int,
        space: str,
        before_rotation: bool = False,
        last: Sequence[gs.Tensor] = (),
    ) -> gs.Tensor:
        """[R, H width], of two streams [2 R, H width]: ``op`` of our own over ``inputs`` and the history, with the
        layer's bias by distance, and with what the prompt gave this layer, where there are such. ``caches``: what it
        gives besides. ``space``: what the operator's output is made of (``prior``). ``before_rotation``: the operator
        turns queries and keys, where the layer has them turned. ``last``: inputs of the operator's own, behind
        ``row_bias``."""
        block, sizes = self.blocks[layer], self.graphs.sizes
        attended = self.build.variable(f"attended_{layer}", ["R", sizes.streams * sizes.H * width])
        bias = MISSING if block.distance_bias is None else self._by_head(block.distance_bias)
        rotation = self._rotation(block) if before_rotation else [MISSING] * 3
        optional = [*rotation, bias, *self._prior(layer, block, space)]
        if last:
            optional += [MISSING] * (len(BEAM_ATTENTION.optional) - len(optional)) + list(last)
        while optional and optional[-1] is MISSING:
            optional.pop()
        attributes = {"scale": block.scale, "window": self.graphs.window(layer)}
        self.build.operator(op, [*inputs, *self.history, *optional], attributes, [attended, *caches])
        return attended if self.streams is None else pairs_of_heads(self.build, attended, sizes.H, width)

    def _by_head(self, table: gs.Constant) -> gs.Constant:
        """A bias [Y, H], which layers may share, as the operators take it, [H, Y]."""
        if table.name not in self.biases:
            self.biases[table.name] = self.build.constant(table.values.T, np.float32)
        return self.biases[table.name]

    def _prior(self, layer: int, block: AttentionBlock, space: str) -> list[gs.Tensor]:
        if self.streams is not None:
            return self.streams.optional(block)
        if not self.graphs.sizes.decoder_only:
            return []
        return prefix_of(self.build, self.graphs.sizes, self.pass_name, layer, block, space)

    def projected(self, block: AttentionBlock) -> gs.Tensor:
        """The new token's queries, keys and values side by side, [R, H K + G (K + V)]; of two streams, the queries of
        both."""
        sizes = self.graphs.sizes
        widths = [sizes.H * sizes.K, sizes.G * sizes.K, sizes.G * sizes.V]
        if block.between:
            assert block.new is not None
            parts = zip((block.node.inputs[0], *block.new), widths, strict=True)
            return self.build.add("Concat", [self.build.rows(*part) for part in parts], {"axis": 1})
        parts_of_one = (block.query, block.key, block.value)
        together = self.build.rows(project_together(self.build, parts_of_one, block.node.name), sum(widths))
        if self.streams is not None:
            return self.streams.projected(block, together)
        if sizes.decoder_only:
            query, rest = (gs.Variable(f"{block.node.name}.{part}") for part in ("query", "rest"))
            parts_of_two = self.build.constant([widths[0], sum(widths[1:])])
            self.build.add("Split", [together, parts_of_two], {"axis": 1}, [query, rest])
            share_query(block, query)
        return together

    def newest(
        self, block: AttentionBlock, query: gs.Tensor, X: int, row: gs.Tensor, width: int
    ) -> tuple[gs.Tensor, gs.Tensor]:
        """The new token's queries [R, H X] and row [R, width], of which values are made too, as they are; of two
        streams, the queries of both."""
        return (query, row) if self.streams is None else self.streams.newest(block, query, X, row, width)

    def _rotation(self, block: AttentionBlock) -> list[gs.Tensor]:
        """Cosines, sines and first positions for an operator that turns a block's queries and keys itself; none where
        no layer of the model turns them (else all layers have those inputs)."""
        tables = self.tables.of(block)
        if not tables:
            return [MISSING] * 3
        return [*tables, graph_input(self.graphs.decoder, "first_positions", np.int32, ["B"])]

    def finish(self) -> None:
        """Caches stand where pasts stood."""
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

    def _read_elsewhere(self, past: gs.Tensor) -> None:
        """What is left of a past are reads of its sizes. The tokens have its rows, and the pasts that other layers keep
        its length, which their biases by distance read."""
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


def project_together(build: Builder, parts: Sequence[Projection], where: str) -> gs.Tensor:
    """[R, 1, total width]: projections of one tensor side by side, out of one product. Raises PassError where they are
    projected from different ones."""
    if any(part.source is not parts[0].source for part in parts):
        raise PassError(f"{build.prefix}: query, key and value of {where} are projected from different tensors")
    dtype = parts[0].weight.dtype
    weight = np.concatenate([part.weight.values for part in parts], axis=1)
    together = build.add("MatMul", [parts[0].source, build.constant(weight, dtype)])
    if all(part.bias is None for part in parts):
        return together
    widths = [part.weight.shape[1] for part in parts]
    biases = [
        np.zeros(width, dtype) if part.bias is None else part.bias.values.reshape(-1)
        for part, width in zip(parts, widths, strict=True)
    ]
    return build.add("Add", [together, build.constant(np.concatenate(biases), dtype)])


def generated_saved(kind: str, layers: int, sizes: Sizes) -> Callable[[RunSize], int]:
    """Bytes that a kind of generated cache saves, next to ``kv-reordered``, which needs a second copy of its keys and
    values to reorder them, where so many layers have it."""

    def saved(run: RunSize) -> int:
        copied = 2 * generated_bytes(["kv-reordered"] * layers, sizes, run)
        return copied - generated_bytes([kind] * layers, sizes, run)

    return saved
