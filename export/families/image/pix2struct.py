"""Pix2Struct (Lee et al. 2022): images as patches in their own proportions, and a decoder like T5's.

An image has as many patches of one size as fit into a limit, so sources have different lengths; each patch has its row
and its column. The decoder's positions are relative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import Family, WeightNumbers, known_activations, size_errors
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

__all__ = ["PIX2STRUCT", "PIX2STRUCT_PARTS"]

PIX2STRUCT_PARTS = ("pix2struct_text_model", "pix2struct_vision_model")
"""``model_type`` of the configs of its parts."""
LONGEST_TARGET = 2048
"""Tokens of an output: transformers sets no limit, and a bundle needs one; T5's."""
TEXT, VISION = "text_config", "vision_config"
SIZES = {
    TEXT: (
        *("vocab_size", "hidden_size", "d_kv", "d_ff", "num_layers", "num_heads"),
        *("relative_attention_num_buckets", "relative_attention_max_distance"),
    ),
    VISION: (
        *("hidden_size", "patch_embed_hidden_size", "d_kv", "d_ff", "num_hidden_layers", "num_attention_heads"),
        "seq_len",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Pix2StructLike(Family):
    """An encoder over patches [B, N, 2 + 3 height width], a decoder with relative positions."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        errors = []
        for part, names in SIZES.items():
            own = getattr(config, part, None)
            errors += [f"{part}: {reason}" for reason in size_errors(own, names)]
        yield from errors
        if errors:
            return
        text, vision = config.text_config, config.vision_config
        if text.num_heads * text.d_kv != text.hidden_size:
            yield (
                f"text_config: {text.num_heads} heads of {text.d_kv} numbers are not the {text.hidden_size} of "
                "hidden_size, as transformers has them"
            )
        if vision.hidden_size != text.hidden_size:
            yield (
                f"vision_config.hidden_size is {vision.hidden_size}, text_config.hidden_size is {text.hidden_size}; "
                "transformers runs this model with one width alone"
            )
        buckets, reach = text.relative_attention_num_buckets, text.relative_attention_max_distance
        if buckets < 2 or reach <= buckets // 2:
            yield (
                f"text_config: relative_attention_max_distance is {reach}; expected more than half of the {buckets} "
                "buckets"
            )

    def config_errors(self, config: Any) -> Iterator[str]:
        errors = list(self.sizes_errors(config))
        yield from errors
        if errors:
            return
        for part in SIZES:
            if (act := getattr(config, part).dense_act_fn) not in (known := known_activations()):
                yield f"{part}: dense_act_fn {act!r} is unknown; transformers has {', '.join(known)}"
        if not config.text_config.is_decoder:
            yield "text_config.is_decoder is false, by which tokens would see those behind them; set it to true"
        if config.is_vqa:
            yield (
                "is_vqa is true, a model whose question is drawn into the image with a font, which is not supported; "
                "expected one that takes an image alone"
            )

    def sizes(self, config: Any) -> Sizes:
        text = config.text_config
        H, K = int(text.num_heads), int(text.d_kv)
        return Sizes(
            D=int(text.hidden_size),
            H=H,
            G=H,
            K=K,
            V=K,
            L=int(text.num_layers),
            vocabulary=int(text.vocab_size),
            source_vocabulary=int(text.vocab_size),
            max_source=int(config.vision_config.seq_len) - 1,  # rows and columns count from 1
            max_target=LONGEST_TARGET,
        )

    def weights(self, config: Any) -> WeightNumbers:
        sizes, text, vision = self.sizes(config), config.text_config, config.vision_config
        D, S = sizes.D, int(vision.hidden_size)
        inner = int(vision.num_attention_heads) * int(vision.d_kv)
        encoder = int(vision.num_hidden_layers) * (4 * S * inner + 3 * S * int(vision.d_ff))
        encoder += S * int(vision.patch_embed_hidden_size)
        decoder = sizes.L * (6 * D * D + 3 * D * int(text.d_ff))
        head = D * sizes.vocabulary
        tables = 2 * int(vision.seq_len) * S + int(text.relative_attention_num_buckets) * sizes.H
        tables += 0 if text.tie_word_embeddings else head
        total = encoder + decoder + sizes.L * 2 * D * D + head + tables
        return WeightNumbers(total, WeightCounts(encoder, decoder + head))

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.image.pix2struct import trace_pix2struct

        return trace_pix2struct(model, sizes)


_TASKS = ("textcaps-base", "textcaps-large", "screen2words-base", "screen2words-large")

PIX2STRUCT = Pix2StructLike(
    model_type="pix2struct",
    architecture="Pix2StructForConditionalGeneration",
    image_config="preprocessor_config.json",
    takes_patches=True,
    aliases={
        **{f"pix2struct-{task}": f"google/pix2struct-{task}" for task in _TASKS},
    },
)
