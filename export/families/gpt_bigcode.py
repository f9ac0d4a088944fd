"""GPT-BigCode (Ben Allal et al. 2023), as in SantaCoder and StarCoder: GPT-2 with one key head for all query heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightbeam.export.families.gpt2 import Gpt2Like


class BigCode(Gpt2Like):
    """GPT-BigCode with ``multi_query``; without it, a head's queries, keys and values come out of one block."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        if not config.multi_query:
            yield "multi_query is false; expected true, one key head for all query heads"

    def key_heads(self, config: Any) -> Any:
        return 1


GPT_BIGCODE = BigCode(model_type="gpt_bigcode", architecture="GPTBigCodeForCausalLM")
