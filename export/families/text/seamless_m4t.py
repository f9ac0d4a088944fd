"""SeamlessM4T (Seamless Communication 2023), versions 1 and 2: the translator from text to text, which is NLLB's.

The layers and the positions are M2M-100's. A checkpoint also has a speech encoder, a generator of speech and a vocoder,
which are not read. The token of the target language begins the output, as `decoder_input_ids`; M2M-100 forces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

from tightbeam.export.families.bart_like import bart_sizes_errors
from tightbeam.export.families.base import square_sizes
from tightbeam.export.families.text.m2m_100 import M2M100Like
from tightbeam.graph_passes import Sizes

__all__ = ["SEAMLESS_M4T", "SEAMLESS_M4T_V2"]


@dataclass(frozen=True, kw_only=True)
class SeamlessLike(M2M100Like):
    """M2M-100's layers, whose width is ``hidden_size``."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        sizes = ("hidden_size", "vocab_size", "max_position_embeddings")
        yield from bart_sizes_errors(config, sizes, width="hidden_size")

    def sizes(self, config: Any) -> Sizes:
        positions = config.max_position_embeddings
        return square_sizes(config, positions, positions, width="hidden_size")

    def complete(self, model: Any) -> None:
        """Give the model transformers' usual `generate`: its own takes other arguments and calls that one."""
        from transformers import GenerationMixin

        model.generate = MethodType(GenerationMixin.generate, model)


def _family(version: str, **aliases: str) -> SeamlessLike:
    return SeamlessLike(
        model_type=f"seamless_m4t{version and '_' + version}",
        architecture=f"SeamlessM4T{version}ForTextToText",
        position_offset=2,
        languages="__([a-z]{3}(?:_[A-Z][a-z]{3})?)__",
        language_begins=True,
        unread_weights=r"^(speech_encoder|t2u_model|vocoder)\.",
        aliases=aliases,
    )


SEAMLESS_M4T = _family(
    "", **{f"hf-seamless-m4t-{size}": f"facebook/hf-seamless-m4t-{size}" for size in ("medium", "large")}
)
SEAMLESS_M4T_V2 = _family("v2", **{"seamless-m4t-v2-large": "facebook/seamless-m4t-v2-large"})
