"""LongT5 (Guo et al. 2022): T5 whose encoder attends in blocks, so that its time is linear in the source.

A query of the encoder sees the keys within `local_radius` ("local"), and with "transient-global" also a token for each
`global_block_size` positions, which is their sum. The decoder is T5's. `n_positions` of the published checkpoints is
4,096, so that a bundle takes sources of 16,384 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import WeightNumbers, size_errors
from tightbeam.export.families.text.t5 import T5Like
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

GLOBAL = "transient-global"
ATTENTION_TYPES = ("local", GLOBAL)
LONGEST = 1023
"""Largest `local_radius` and `global_block_size`: the bias of a block grows with the square of the radius, 127 in the
published models."""


@dataclass(frozen=True, kw_only=True)
class LongT5Like(T5Like):
    """T5 with an encoder over blocks."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        yield from super().sizes_errors(config)
        kind = config.encoder_attention_type
        if kind not in ATTENTION_TYPES:
            yield f"encoder_attention_type is {kind!r}; expected {' or '.join(ATTENTION_TYPES)}"
        for name in ("local_radius", "global_block_size"):
            errors = list(size_errors(config, (name,)))
            yield from errors
            if not errors and getattr(config, name) > LONGEST:
                yield f"{name} is {getattr(config, name)}; expected at most {LONGEST}"

    def weights(self, config: Any) -> WeightNumbers:
        numbers = super().weights(config)
        if config.encoder_attention_type != GLOBAL:
            return numbers
        sizes, layers = self.sizes(config), int(config.num_layers)
        again = layers * 2 * sizes.D * sizes.H * sizes.K  # keys and values of the global tokens, of the same weights
        table = int(config.relative_attention_num_buckets) * sizes.H
        products = WeightCounts(numbers.products.encoder + again, numbers.products.decoder)
        return WeightNumbers(numbers.total + table, products)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.attention_named import standard_attention

        return standard_attention(model)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.text.longt5 import trace_longt5

        return trace_longt5(model, sizes)


LONGT5 = LongT5Like(
    model_type="longt5",
    architecture="LongT5ForConditionalGeneration",
    trained=4096,
    aliases={
        "long-t5-local-base": "google/long-t5-local-base",
        "long-t5-local-large": "google/long-t5-local-large",
        "long-t5-tglobal-base": "google/long-t5-tglobal-base",
        "long-t5-tglobal-large": "google/long-t5-tglobal-large",
        "long-t5-tglobal-xl": "google/long-t5-tglobal-xl",
    },
)
