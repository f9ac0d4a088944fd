"""The setting ``eos_token_id``: tokens that end a sequence."""

from __future__ import annotations

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.endings._ending import Ending

__all__ = ["end_tokens"]


class EndTokens(Ending):
    """End tokens."""

    reason = "end_token"

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens


def end_tokens(options: GenerationOptions) -> Ending | None:
    """The ending of ``eos_token_id``."""
    return EndTokens(options.eos_token_ids) if options.eos_token_ids else None
