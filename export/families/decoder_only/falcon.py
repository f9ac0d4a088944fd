"""Falcon (Almazrouei et al. 2023): rotary positions; attention beside the feed-forward part, with one key head for all
query heads (7B) or one for a group of them (40B). Falcon-RW: biases in place of positions (ALiBi), and a key head each.

transformers gives it an attention outside the attention interface, with one product for queries, keys and values, group
by group. ``export/tracing/decoder_only/falcon.py`` replaces that by an attention through the interface, with three
products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tightbeam.export.families.base import head_errors
from tightbeam.export.families.causal import Causal
from tightbeam.graph_passes import Sizes


class FalconLike(Causal):
    """Falcon with RoPE or ALiBi, whose biases transformers rounds to bfloat16 by the position of the key."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        yield from super().sizes_errors(config)
        yield from head_errors(config, self.width, self.heads)

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        H, G, norms = config.num_attention_heads, config.num_kv_heads, config.num_ln_in_parallel_attn
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
        if config.multi_query and not config.new_decoder_architecture:
            return 1
        return config.num_attention_heads if config.num_kv_heads is None else config.num_kv_heads

    def sizes(self, config: Any) -> Sizes:
        return replace(super().sizes(config), rotary=not config.alibi)

    def key_bias(self, sizes: Sizes) -> Any:
        from tightbeam.export.tracing.decoder_only.falcon import key_bias

        return None if sizes.rotary else key_bias(sizes.H, sizes.max_target, sizes.D // sizes.H)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.decoder_only.falcon import attention_interface

        return attention_interface(model, self.key_heads(model.config))


FALCON = FalconLike(
    model_type="falcon",
    architecture="FalconForCausalLM",
    activation="activation",
    inner="ffn_hidden_size",
    gated=False,
    aliases={
        "falcon-7b": "tiiuae/falcon-7b",
        "falcon-7b-instruct": "tiiuae/falcon-7b-instruct",
        "falcon-11B": "tiiuae/falcon-11B",
        "falcon-rw-1b": "tiiuae/falcon-rw-1b",
        "falcon-rw-7b": "tiiuae/falcon-rw-7b",
        "falcon-40b": "tiiuae/falcon-40b",
        "falcon-40b-instruct": "tiiuae/falcon-40b-instruct",
    },
)
