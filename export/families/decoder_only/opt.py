"""OPT (Zhang et al. 2022): BART's decoder without an encoder, with learned positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tightbeam.export.families.base import WeightNumbers
from tightbeam.export.families.causal import Causal
from tightbeam.graph_passes import ModelGraphs, Sizes


class Opt(Causal):
    """GPT-2's structure; embeddings of another width than the layers (OPT-350M) are refused."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        width = config.word_embed_proj_dim
        if width is not None and width != config.hidden_size:
            yield f"word_embed_proj_dim is {width!r}; expected hidden_size, {config.hidden_size!r}"

    def weights(self, config: Any) -> WeightNumbers:
        numbers = super().weights(config)
        unused = 2 * config.hidden_size  # the first rows of the table of positions
        return replace(numbers, total=numbers.total + unused)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.decoder_only.opt import states_by_position

        with states_by_position():
            return super().trace(model, sizes)


OPT = Opt(
    model_type="opt",
    architecture="OPTForCausalLM",
    activation="activation_function",
    inner="ffn_dim",
    rotary=False,
    gated=False,
    aliases={f"opt-{size}": f"facebook/opt-{size}" for size in ("125m", "1.3b", "2.7b", "6.7b", "13b", "30b", "66b")},
)
