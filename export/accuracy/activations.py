"""Real activations: the inputs of every attention of the decoder while the model generates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes.model import Array

__all__ = ["AttentionActivations", "channels_of", "decoder_activations"]

IMPLEMENTATION = "sdpa"


@dataclass(frozen=True)
class AttentionActivations:
    """One attention on real inputs, B samples of T queries, float32.

    ``states`` [B, N, D]: what keys and values are projected from. ``query`` [B, H, T, K], ``key`` [B, G, N, K] and
    ``value`` [B, G, N, V]: with biases. ``mask`` [B, 1 or H, T, N]: added to the scores. ``scale``: multiplies queries.
    ``softcap``: cap of the scores before the mask; 0 for no cap.
    """

    states: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    scale: float
    softcap: float = 0.0


def decoder_activations(
    checkpoint: Checkpoint, source: Mapping[str, Any], targets: Sequence[Sequence[int]]
) -> tuple[list[AttentionActivations], list[AttentionActivations]]:
    """Run the model once over finished generations, and record every attention of the decoder.

    Parameters
    ----------
    checkpoint
        The model.
    source
        The arguments of ``model.generate``.
    targets
        The sequences that it generated from them, with the start token or the prompt.

    Returns
    -------
    list of AttentionActivations
        The attention over the source, for each layer.
    list of AttentionActivations
        The attention over the generated part, for each layer. With one softmax over both parts (a decoder-only model's
        prompt and output) it is that attention, the same.

    Raises
    ------
    ExportError
        The model's attention does not go through transformers' attention interface.
    """
    model, sizes = checkpoint.model, checkpoint.sizes
    target, target_mask = _pad([list(row)[: sizes.max_target] for row in targets])
    with torch.no_grad(), quiet_transformers(), checkpoint.family.attention_interface(model):
        if sizes.decoder_only:
            with _recorded(model) as found:
                model(input_ids=target, attention_mask=target_mask, use_cache=False)
            both = [_checked(found, sizes.L)] * 2
            return both[0], both[1]
        mask = source.get("attention_mask")
        tensors = {name: given for name, given in source.items() if isinstance(given, Tensor)}
        given = {"input_ids" if name == "inputs" else name: tensor for name, tensor in tensors.items()}
        encoded = model.get_encoder()(**given)
        with _recorded(model.get_decoder()) as found:
            model(
                encoder_outputs=encoded,
                attention_mask=mask,
                decoder_input_ids=target,
                decoder_attention_mask=target_mask,
                use_cache=False,
            )
    if sizes.merged:
        both = [_checked(found, sizes.L)] * 2
        return both[0], both[1]
    _checked(found, 2 * sizes.L)
    return found[1::2], found[::2]


def channels_of(
    source: Sequence[AttentionActivations], generated: Sequence[AttentionActivations]
) -> dict[tuple[str, int], Array]:
    """``ModelGraphs.channels``: the root mean square of each channel of the rows that a layer's keys are made of."""
    return {
        (part, layer): found.states.double().square().mean(dim=(0, 1)).sqrt().numpy()
        for part, layers in (("source", source), ("generated", generated))
        for layer, found in enumerate(layers)
    }


def _checked(found: list[AttentionActivations], expected: int) -> list[AttentionActivations]:
    if len(found) != expected:
        raise ExportError(
            f"saw {len(found)} attentions in the decoder, expected {expected}; "
            "please report this with the checkpoint's config.json"
        )
    return found


def _pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
    return ids, mask


@contextmanager
def _recorded(part: nn.Module) -> Iterator[list[AttentionActivations]]:
    """Record the inputs of the attentions of a part of the model, in the order of their calls."""
    found: list[AttentionActivations] = []
    states: list[Tensor] = []

    def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = [kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states")]
        first = next((tensor for tensor in (*named, *args, kwargs.get("hidden_states")) if tensor is not None), None)
        if first is not None:
            states.append(first)

    original = ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION]

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        scale = kwargs.get("scaling")
        mask = _added_to_scores(query, key, attention_mask, kwargs.get("position_bias"))
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        given = kwargs.pop("attended_inputs", None)
        softcap = float(kwargs.get("softcap") or 0)
        found.append(
            AttentionActivations(states[-1] if given is None else given, query, key, value, mask, scale, softcap)
        )
        result: tuple[Tensor, Tensor | None] = original(module, query, key, value, attention_mask, **kwargs)
        return result

    hooks = [
        module.register_forward_pre_hook(remember, with_kwargs=True)
        for module in part.modules()
        if type(module).__name__.endswith("Attention")
    ]
    ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION] = attend
    try:
        yield found
    finally:
        ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION] = original
        for hook in hooks:
            hook.remove()


def _added_to_scores(query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """Mask and bias as one term [B, 1 or H, T, N]; without a mask, T = N queries are causal."""
    B, T, N = query.shape[0], query.shape[2], key.shape[2]
    if mask is None:
        mask = torch.ones((T, N), dtype=torch.bool).tril()[None, None] if T == N else torch.ones(1, 1, T, N).bool()
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    added = mask[..., :N].expand(B, -1, -1, -1)
    return added if bias is None else added + bias
