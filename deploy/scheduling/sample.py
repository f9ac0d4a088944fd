"""One sample of the scheduler: a source with settings of its own, resolved as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.tries.trie import Trie

__all__ = ["Sample"]


@dataclass(frozen=True, eq=False)
class Sample:
    """A source and its settings.

    Attributes
    ----------
    number : int
        The caller's number of the sample; no two have the same.
    options : GenerationOptions
    source : int64 [N], float32 [mels, frames] or float32 [X, ...]
        What the encoder reads: token ids, a prompt without its last token, or features.
    positions : int
        Source positions that count, N; 0 for a prompt of one token.
    prompt : int64 [P] or None
        The tokens that the rows of a decoder-only model begin with.
    alone : bool
        The sample shares its batch with no other: it is run again, after its batch failed.
    """

    number: int
    options: GenerationOptions
    source: Array
    positions: int
    prompt: Ints | None = None
    alone: bool = False

    @classmethod
    def of_tokens(
        cls,
        number: int,
        tokens: Sequence[int],
        options: GenerationOptions,
        *,
        decoder_only: bool = False,
        entropy: bytes = b"",
    ) -> Sample:
        """Make a sample of the source of an encoder-decoder, or of the prompt of a decoder-only model.

        ``entropy`` is what is drawn with where there is no seed; by default the system's.
        """
        ids, options = np.array(tokens, np.int64), options.for_input(tokens, entropy=entropy)
        if not decoder_only:
            return cls(number, options, ids, len(ids))
        source = ids[:-1] if len(ids) > 1 else np.zeros(1, np.int64)  # N is at least 1
        return cls(number, options, source, len(ids) - 1, ids)

    @property
    def tokens(self) -> Ints | None:
        """The tokens int64 [N] that were given: the source's or the prompt's; None for features."""
        if self.prompt is not None:
            return self.prompt
        return None if self.has_features else self.source

    @property
    def has_features(self) -> bool:
        """True where the source is features, of a window, a recording or an image, rather than token ids."""
        return self.source.dtype.kind == "f"

    @property
    def width(self) -> int:
        """Source positions in a buffer, at least one."""
        return max(1, self.positions)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt, which the result's sequences begin with; 0 of an encoder-decoder."""
        return 0 if self.prompt is None else len(self.prompt)

    @property
    def first_length(self) -> int:
        """Tokens of a row when the decoder is fed for the first time."""
        return max(1, self.prompt_length)

    @property
    def first_position(self) -> int:
        """The position of the first token that the decoder is fed."""
        return self.first_length - 1

    @property
    def cached(self) -> int:
        """Positions of the generated cache; the last token is never fed back."""
        return self.options.max_length - self.first_length

    @property
    def group(self) -> tuple[int, int, float, int, str, Trie | None, int | None]:
        """Values that the samples of one batch share: two shapes and two scalars of the graph, the kind of search, the
        trie, and the number of a sample that runs alone."""
        asked, alone = self.options, self.number if self.alone else None
        numbers = asked.num_beams, asked.candidates, asked.repetition_penalty, asked.no_repeat_ngram_size
        return *numbers, asked.kind, asked.trie, alone
