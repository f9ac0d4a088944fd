"""Checkpoint -> canonical graphs: one trace with torch's exporter, from which every variant is rewritten.

The canonical graphs hold no cache trick at all:

- encoder: ``input_ids`` int64 [B, N], ``attention_mask`` int64 [B, N] -> ``encoder_hidden_states`` [B, N, D]
- decoder, one new token a row: ``tokens`` int64 [R, 1], ``positions`` int64 [R, 1], ``encoder_hidden_states``
  [R, N, D], ``attention_mask`` int64 [R, N], ``past.<l>.key`` and ``past.<l>.value`` [R, H, T, K]
  -> ``logits`` [R, 1, vocabulary], ``present.<l>.key`` and ``present.<l>.value`` [R, H, T + 1, K]

Attention is the standard ``Attention`` operator of opset 23; keys and values are projected inside the graph, for
cross-attention from ``encoder_hidden_states``, for self-attention from the new token.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from tightbeam.export.checkpoint import Checkpoint
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.base import settle_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

TRACE_OPSET = 23
INLINE_BYTES = 1024
"""Initialisers larger than this never pass through a protobuf message."""


class EncoderStep(nn.Module):
    """The encoder with the mask as a plain input."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        B, N = attention_mask.shape
        # [B, 1, N, N] is taken as it is by transformers; ONNX Runtime's Attention wants the query axis in full.
        mask = attention_mask[:, None, None, :].to(torch.bool).expand(B, 1, N, N)
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state  # [B, N, D]
        return states


class RowPositions(nn.Module):
    """Position embedding looked up by a graph input, so that rows at different steps can share a batch."""

    def __init__(self, table: nn.Embedding, offset: int) -> None:
        super().__init__()
        self.weight = table.weight
        self.offset = offset
        self.positions: Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self.positions is not None
        return nn.functional.embedding(self.positions + self.offset, self.weight)  # [R, 1, D]


class DecoderStep(nn.Module):
    """One decoder step over an explicit past, without any cache of cross-attention."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        model = checkpoint.model
        self.decoder = model.get_decoder()
        self.lm_head = model.lm_head
        self.logits_bias = model.final_logits_bias
        table, offset = checkpoint.family.position_embeddings(model)
        self.positions = RowPositions(table, offset)

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        own = DynamicCache()
        for layer in range(len(past) // 2):
            own.update(past[2 * layer], past[2 * layer + 1], layer)
        R, T = past[0].shape[0], past[0].shape[2]
        everything = torch.ones((R, 1, 1, T + 1), dtype=torch.bool)  # one query at the end sees all positions
        self.positions.positions = positions
        states = self.decoder(
            input_ids=tokens,
            attention_mask=everything,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=attention_mask[:, None, None, :].to(torch.bool),
            past_key_values=EncoderDecoderCache(own, DynamicCache()),
            use_cache=True,
        ).last_hidden_state  # [R, 1, D]
        present = [tensor for keys, values in own_keys_and_values(own) for tensor in (keys, values)]
        return (self.lm_head(states) + self.logits_bias, *present)


def own_keys_and_values(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


def trace(checkpoint: Checkpoint) -> ModelGraphs:
    """The canonical graphs of a checkpoint, weights included (they share memory with the torch model).

    Raises ExportError where torch's exporter gives up or yields inputs that are not dynamic as they must be.
    """
    sizes = model_sizes(checkpoint)
    graphs = ModelGraphs(_trace_encoder(checkpoint, sizes), _trace_decoder(checkpoint, sizes), sizes)
    settle_attention(graphs)
    return graphs


def model_sizes(checkpoint: Checkpoint) -> Sizes:
    """DESIGN's letters for this checkpoint."""
    config = checkpoint.config
    H = int(config.decoder_attention_heads)
    D = int(config.d_model)
    positions = checkpoint.family.max_positions(config)
    return Sizes(
        D=D,
        H=H,
        G=H,
        K=D // H,
        V=D // H,
        L=int(config.decoder_layers),
        vocabulary=int(checkpoint.model.lm_head.out_features),
        source_vocabulary=int(checkpoint.model.get_encoder().embed_tokens.num_embeddings),
        max_source=positions,
        max_target=positions,
    )


def _trace_encoder(checkpoint: Checkpoint, sizes: Sizes) -> gs.Graph:
    B, N = 3, min(7, sizes.max_source)
    mask = torch.ones((B, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    args = (torch.arange(B * N).reshape(B, N) % sizes.source_vocabulary, mask)
    batch, source = Dim("B", min=1), Dim("N", min=1, max=sizes.max_source)
    return _trace(
        EncoderStep(checkpoint.model.get_encoder()),
        args,
        ({0: batch, 1: source}, {0: batch, 1: source}),
        {"input_ids": ("B", "N"), "attention_mask": ("B", "N")},
        {"encoder_hidden_states": ("B", "N", sizes.D)},
    )


def _trace_decoder(checkpoint: Checkpoint, sizes: Sizes) -> gs.Graph:
    R, N, T = 3, min(7, sizes.max_source), 5
    mask = torch.ones((R, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    generator = torch.Generator().manual_seed(0)
    # Distinct tensors: one object given twice would be traced as one input.
    past = [torch.randn((R, sizes.H, T, sizes.K), generator=generator) for _ in range(2 * sizes.L)]
    args = (
        torch.arange(R).reshape(R, 1) % sizes.vocabulary,
        torch.full((R, 1), T),
        torch.randn((R, N, sizes.D), generator=generator),
        mask,
        *past,
    )
    rows, source, steps = Dim("R", min=1), Dim("N", min=1, max=sizes.max_source), Dim("T", min=1)
    dynamic = ({0: rows}, {0: rows}, {0: rows, 1: source}, {0: rows, 1: source}, ({0: rows, 2: steps},) * len(past))
    names = [f"{layer}.{part}" for layer in range(sizes.L) for part in ("key", "value")]
    inputs: dict[str, Sequence[int | str]] = {
        "tokens": ("R", 1),
        "positions": ("R", 1),
        "encoder_hidden_states": ("R", "N", sizes.D),
        "attention_mask": ("R", "N"),
    }
    outputs: dict[str, Sequence[int | str]] = {"logits": ("R", 1, sizes.vocabulary)}
    for name in names:
        inputs[f"past.{name}"] = ("R", sizes.H, "T", sizes.K)
        outputs[f"present.{name}"] = ("R", sizes.H, "T + 1", sizes.K)
    decoder = checkpoint.model.get_decoder()
    original = decoder.embed_positions
    step = DecoderStep(checkpoint)
    decoder.embed_positions = step.positions
    try:
        return _trace(step, args, dynamic, inputs, outputs)
    finally:
        decoder.embed_positions = original


def _trace(
    module: nn.Module,
    args: tuple[Tensor, ...],
    dynamic_shapes: Any,
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str]],
) -> gs.Graph:
    with _quiet_exporter():
        try:
            program = torch.onnx.export(
                module,
                args,
                dynamo=True,
                opset_version=TRACE_OPSET,
                dynamic_shapes=dynamic_shapes,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ExportError(
                f"torch.onnx.export could not trace {type(module).__name__}: {reason}; "
                "please report this with the checkpoint's config.json"
            ) from error
    assert program is not None
    graph = _to_graphsurgeon(program.model)
    for tensors, declared in ((graph.inputs, inputs), (graph.outputs, outputs)):
        _check_dynamic(tensors, declared)
        for tensor in tensors:
            tensor.shape = list(declared[tensor.name])
    return graph


def _check_dynamic(tensors: list[gs.Tensor], declared: dict[str, Sequence[int | str]]) -> None:
    """The exporter specialises silently; what must be dynamic is checked by name."""
    if [tensor.name for tensor in tensors] != list(declared):
        raise ExportError(f"the trace has {[tensor.name for tensor in tensors]}, expected {list(declared)}")
    for tensor in tensors:
        for axis, (size, wanted) in enumerate(zip(tensor.shape, declared[tensor.name], strict=True)):
            if isinstance(wanted, str) == isinstance(size, int) or (isinstance(wanted, int) and size != wanted):
                raise ExportError(f"the trace fixed axis {axis} of {tensor.name} to {size}, expected {wanted}")


def _to_graphsurgeon(model: ir.Model) -> gs.Graph:
    """Weights are handed over as arrays that share memory with the torch model, not through the message."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes > INLINE_BYTES:
            arrays[name] = tensor.numpy()
            value.const_value = ir.ExternalTensor(
                "weights", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(list(tensor.shape.numpy())), name=name
            )
    proto: onnx.ModelProto = ir.to_proto(model)
    del proto.graph.value_info[:]
    graph = gs.import_onnx(proto)
    tensors = graph.tensors()
    for name, array in arrays.items():
        if name in tensors:
            tensors[name].values = array
    for tensor in tensors.values():
        if isinstance(tensor, gs.Constant):
            tensor.data_location = None
    return graph.cleanup().toposort()


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """torch's exporter talks about optional packages and deprecations of its own."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
