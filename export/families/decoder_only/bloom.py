"""BLOOM (BigScience workshop 2022): GPT-2's structure with biases of the scores in place of positions (ALiBi).

transformers projects queries, keys and values by one product, head by head, and its attention is outside the attention
interface. ``export/tracing/decoder_only/bloom.py`` replaces it by one through the interface, with three products.
"""

from __future__ import annotations

from types import ModuleType

from tightbeam.export.families.decoder_only._alibi import AlibiLike


class Bloom(AlibiLike):
    """A model of unlimited positions; a bundle has as many as it was trained with, the config's ``seq_length``."""

    def tracing(self) -> ModuleType:
        from tightbeam.export.tracing.decoder_only import bloom

        return bloom


BLOOM = Bloom(
    model_type="bloom",
    architecture="BloomForCausalLM",
    layers="n_layer",
    heads="n_head",
    positions="seq_length",
    longest=2048,
    aliases={
        **{f"bloom-{size}": f"bigscience/bloom-{size}" for size in ("560m", "1b1", "1b7", "3b", "7b1")},
        **{f"bloomz-{size}": f"bigscience/bloomz-{size}" for size in ("560m", "1b1", "1b7", "3b", "7b1")},
    },
)
