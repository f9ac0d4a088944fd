"""Falcon (Almazrouei et al. 2023): rotary positions; attention beside the feed-forward part, with one key head for all
query heads (7B) or one for a group of them (40B).

transformers gives it an attention outside the attention interface, with one product for queries, keys and values, group
by group. ``FalconLike.attention_interface`` replaces that by an attention through the interface, with three products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.falcon import modeling_falcon
from transformers.models.falcon.modeling_falcon import FalconAttention, FalconLinear

from tightbeam.export.families.base import head_errors
from tightbeam.export.families.causal import Causal
from tightbeam.graph_passes import ModelGraphs, Sizes


class FalconLike(Causal):
    """Falcon with RoPE. ALiBi is refused: transformers rounds its bias to bfloat16 by the position of the key, so that
    it is no function of the distance."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        yield from head_errors(config, self.width, self.heads)
        H, G, norms = config.num_attention_heads, config.num_kv_heads, config.num_ln_in_parallel_attn
        if config.alibi:
            yield "alibi is true; expected a model with rotary positions (alibi false)"
        if config.new_decoder_architecture:
            if not config.parallel_attn:
                yield "parallel_attn is false; expected true with new_decoder_architecture"
            if norms not in (None, 1, 2):
                yield f"num_ln_in_parallel_attn is {norms}; expected 1 or 2"
        elif norms == 2 and config.parallel_attn:
            yield "num_ln_in_parallel_attn is 2; expected 1 without new_decoder_architecture"
        elif not config.multi_query and G != H:
            yield f"num_kv_heads is {G}; expected num_attention_heads, {H}, without multi_query"

    def key_heads(self, config: Any) -> Any:
        return 1 if config.multi_query and not config.new_decoder_architecture else config.num_kv_heads

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        with self.attention_interface(model):
            return super().trace(model, sizes)

    @contextmanager
    def attention_interface(self, model: Any) -> Iterator[None]:
        groups = model.config.num_attention_heads // self.key_heads(model.config)
        with ExitStack() as stack:
            stack.enter_context(patch.object(FalconLinear, "forward", nn.Linear.forward))
            stack.enter_context(patch.object(FalconAttention, "forward", _attend))
            stack.enter_context(patch.object(FalconAttention, "num_key_value_groups", groups, create=True))
            for attention in [module for module in model.modules() if isinstance(module, FalconAttention)]:
                attention.projections = _projections(attention, groups)
                stack.callback(delattr, attention, "projections")
            yield


def _projections(attention: FalconAttention, groups: int) -> nn.ModuleList:
    """Three products for queries, keys and values out of the fused one, which yields for each key head the queries of
    ``groups`` heads, the keys, and the values."""
    fused, K = attention.query_key_value, attention.head_dim

    def split(tensor: Tensor) -> list[Tensor]:
        by_head = tensor.unflatten(0, (-1, groups + 2, K))  # [G, groups + 2, K, ...]
        parts = by_head[:, :groups].flatten(0, 1), by_head[:, groups], by_head[:, groups + 1]
        return [part.flatten(0, 1) for part in parts]

    weights = split(fused.weight)
    biases = [None] * len(weights) if fused.bias is None else split(fused.bias)
    projections = nn.ModuleList()
    for weight, bias in zip(weights, biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        projections.append(linear)
    return projections


def _attend(
    self: Any,
    hidden_states: Tensor,
    alibi: None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    **_: Any,
) -> tuple[Tensor, None]:
    """`FalconAttention.forward`, [B, T, D] to [B, T, D], through transformers' attention interface."""

    def heads(projection: nn.Module) -> Tensor:
        by_head: Tensor = projection(hidden_states).unflatten(-1, (-1, self.head_dim))
        return by_head.transpose(1, 2)  # [B, H or G, T, K]

    queries, keys, values = (heads(projection) for projection in self.projections)
    queries, keys = modeling_falcon.apply_rotary_pos_emb(queries, keys, *position_embeddings)
    if layer_past is not None:
        keys, values = layer_past.update(keys, values, self.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
    attended, _weights = attend(self, queries, keys, values, attention_mask, scaling=self.inv_norm_factor)
    return self.dense(attended.flatten(2)), None


FALCON = FalconLike(
    model_type="falcon",
    architecture="FalconForCausalLM",
    activation="activation",
    aliases={
        "falcon-7b": "tiiuae/falcon-7b",
        "falcon-7b-instruct": "tiiuae/falcon-7b-instruct",
        "falcon-11B": "tiiuae/falcon-11B",
        "falcon-40b": "tiiuae/falcon-40b",
        "falcon-40b-instruct": "tiiuae/falcon-40b-instruct",
    },
)
