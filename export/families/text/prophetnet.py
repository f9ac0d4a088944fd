"""ProphetNet (Qi et al. 2020): two-stream self-attention, a main stream over the tokens beside predicting streams.

`generate` takes the logits of the first predicting stream alone, and no stream reads a later one, so that a step runs
two positions a row: the newest token in the main stream, and behind it the prediction. The prediction sees the main
stream's keys and its own, which nothing else sees. The bias by distance depends on the content: each layer computes one
for every bucket of distances (T5's) from its own input.

transformers computes its attention outside the attention interface. Its model without a cache mixes up the biases of
the predicting streams' heads (the axes of `get_predict_relative_pos_embeddings` are in another order for more than one
position), so that `use_cache=True`, the default, is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import (
    Family,
    WeightNumbers,
    activation_errors,
    encoder_decoder_errors,
    head_errors,
    size_errors,
    square_sizes,
)
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

SIZES = (
    "hidden_size",
    "vocab_size",
    "max_position_embeddings",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_encoder_attention_heads",
    "num_decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ngram",
    "num_buckets",
    "relative_max_distance",
)


@dataclass(frozen=True, kw_only=True)
class ProphetNetLike(Family):
    """An encoder-decoder whose decoder runs two streams in a step; the head is `model.lm_head`, without bias."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        errors = list(size_errors(config, SIZES))
        yield from errors
        if not errors:
            for side in ("encoder", "decoder"):
                yield from head_errors(config, "hidden_size", f"num_{side}_attention_heads")
            if config.num_buckets < 2:
                yield f"num_buckets is {config.num_buckets}; expected at least 2"
            elif config.relative_max_distance <= config.num_buckets // 2:
                yield (
                    f"relative_max_distance is {config.relative_max_distance}; expected more than half of the "
                    f"{config.num_buckets} buckets"
                )
            if config.max_position_embeddings < 4:
                yield f"max_position_embeddings is {config.max_position_embeddings}; expected at least 4"

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from self.sizes_errors(config)
        if config.pad_token_id != 0:
            yield f"pad_token_id is {config.pad_token_id}; transformers counts positions from it, and expects 0"
        yield from activation_errors(config, "activation_function")
        if not config.add_cross_attention:
            yield f"add_cross_attention is false; {self.architecture} reads its source by it"
        yield from encoder_decoder_errors(config, self.architecture)

    def generation_errors(self, generation: Any) -> Iterator[str]:
        if generation.use_cache is False:  # None is the default, true
            yield "use_cache is false, with which transformers mixes up the predicting streams' heads; set it true"

    def sizes(self, config: Any) -> Sizes:
        return square_sizes(
            config,
            max_source=config.max_position_embeddings,
            max_target=config.max_position_embeddings - 1,  # row 0 is not a position, and a prediction is one ahead
            width="hidden_size",
            heads="num_decoder_attention_heads",
            layers="num_decoder_layers",
            streams=2,
        )

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        D, square = sizes.D, sizes.D**2
        biases = D * int(config.num_buckets) * sizes.H
        encoder = int(config.num_encoder_layers) * (4 * square + 2 * D * int(config.encoder_ffn_dim))
        decoder = sizes.L * (6 * square + 2 * D * int(config.decoder_ffn_dim) + biases)
        head = D * sizes.vocabulary
        tables = head + D * (2 * int(config.max_position_embeddings) + int(config.ngram))
        if not config.tie_word_embeddings:
            tables += 3 * head  # both sides then have their own
        total = encoder + decoder + sizes.L * 2 * square + tables
        return WeightNumbers(total, WeightCounts(encoder, decoder + head))

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.text.prophetnet import trace_prophetnet

        return trace_prophetnet(model, sizes)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.text.prophetnet import attention_interface

        return attention_interface(model)


PROPHETNET = ProphetNetLike(
    model_type="prophetnet",
    architecture="ProphetNetForConditionalGeneration",
    aliases={
        "prophetnet-large-uncased": "microsoft/prophetnet-large-uncased",
        "prophetnet-large-uncased-cnndm": "microsoft/prophetnet-large-uncased-cnndm",
        "prophetnet-large-uncased-squad-qg": "microsoft/prophetnet-large-uncased-squad-qg",
    },
)
