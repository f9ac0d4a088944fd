"""MPT (MosaicML 2023): GPT-2's structure without biases, with biases of the scores in place of positions (ALiBi).

transformers gives it an attention outside the attention interface; ``export/tracing/decoder_only/mpt.py`` replaces it
by one through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tightbeam.export.families.decoder_only._alibi import AlibiLike


class Mpt(AlibiLike):
    """A model that does not clip queries, keys and values; MPT-7B-StoryWriter does, and is refused."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        if clip := config.attn_config.clip_qkv:
            yield f"clip_qkv of attn_config is {clip!r}; expected none: no cache supports it"

    def tracing(self) -> ModuleType:
        from tightbeam.export.tracing.decoder_only import mpt

        return mpt


MPT = Mpt(
    model_type="mpt",
    architecture="MptForCausalLM",
    width="d_model",
    layers="n_layers",
    heads="n_heads",
    positions="max_seq_len",
    rounds_scores=True,
    aliases={
        **{f"mpt-7b{kind}": f"mosaicml/mpt-7b{kind}" for kind in ("", "-instruct", "-chat")},
        **{f"mpt-30b{kind}": f"mosaicml/mpt-30b{kind}" for kind in ("", "-instruct", "-chat")},
    },
)
