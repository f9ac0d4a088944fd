"""A sample: one source with its own settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runtimes.kept_prompt import KeptPrompt
from tightbeam.deploy.tries.trie import Trie

__all__ = ["BatchKey", "Sample", "samples_of_features"]

BatchKey: TypeAlias = tuple[int, int, float, int, str, Trie | None, int | None]
"""Values that the samples of a batch share: two shapes and two scalars of the graph, the kind of search, the trie, and
for a sample that runs alone its number."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A source and its settings.

    Attributes
    ----------
    number : int
        The caller's number of the sample, which no other sample has.
    options : GenerationOptions
    source : int64 [N], float32 [mels, frames] or float32 [X, ...]
        What the encoder reads: token ids, a prompt without its last token, or features.
    positions : int
        N, the positions that the encoder makes of the source; 0 for a prompt of one token.
    mask : int64 [N], optional
        0 at positions that do not count, 1 elsewhere. By default all positions count.
    prompt : int64 [P] or None
        The tokens that the rows of a decoder-only model begin with.
    padding : int
        Padding tokens that the prompt begins with. They have no source position. As in transformers, rules about
        lengths, n-grams and words count them, and ``repetition_penalty`` does not.
    alone : bool
        True for a sample that runs again in a batch of its own, after its batch failed.
    kept : KeptPrompt or None
        An earlier prompt that this one may continue, and which it replaces when it is encoded.
    """

    number: int
    options: GenerationOptions
    source: Array
    positions: int
    mask: Ints | None = None
    prompt: Ints | None = None
    padding: int = 0
    alone: bool = False
    kept: KeptPrompt | None = None

    @classmethod
    def of_tokens(
        cls,
        number: int,
        tokens: Sequence[int] | Ints,
        options: GenerationOptions,
        *,
        decoder_only: bool = False,
        mask: Ints | None = None,
        entropy: bytes = b"",
    ) -> Sample:
        """Make a sample of the source of an encoder-decoder, or of the prompt of a decoder-only model.

        Parameters
        ----------
        number, options
            Attributes of `Sample`.
        tokens : integers [N]
            At least one.
        decoder_only : bool
            The tokens are a prompt.
        mask : int64 [N], optional
            0 at padding. The tokens of a prompt are contiguous; its padding is moved in front of them.
        entropy : bytes
            Random bytes for the draws, read if no seed is set. By default the system gives them.
        """
        ids = np.array(tokens, np.int64)
        own = ids if mask is None else ids[mask > 0]
        options = options.for_input(own.tolist(), entropy=entropy)
        if not decoder_only:
            return cls(number, options, ids, len(ids), None if len(own) == len(ids) else mask)
        source = own[:-1] if len(own) > 1 else np.zeros(1, np.int64)  # N is at least 1
        prompt = ids if mask is None else np.concatenate([ids[mask == 0], own])
        return cls(number, options, source, len(own) - 1, prompt=prompt, padding=len(ids) - len(own))

    @property
    def tokens(self) -> Ints | None:
        """The given tokens int64 [N], padding included, of the source or the prompt; None for features."""
        if self.prompt is not None:
            return self.prompt
        return None if self.has_features else self.source

    @property
    def source_tokens(self) -> int:
        """Number of tokens of the source or the prompt, without padding; 0 for features."""
        if self.prompt is not None:
            return len(self.prompt) - self.padding
        return 0 if self.has_features else self.positions if self.mask is None else int(self.mask.sum())

    @property
    def has_features(self) -> bool:
        """True if the source is features of a window, a recording or an image, rather than token ids."""
        return self.source.dtype.kind == "f"

    @property
    def width(self) -> int:
        """Source positions that the sample takes in a buffer, at least one."""
        return max(1, self.positions)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt that the result's sequences begin with, padding included; 0 for an encoder-decoder."""
        return 0 if self.prompt is None else len(self.prompt)

    @property
    def first_length(self) -> int:
        """Tokens of a row when the decoder is fed for the first time."""
        return max(1, self.prompt_length)

    @property
    def first_position(self) -> int:
        """The position of the first token that the decoder is fed."""
        return self.first_length - 1 - self.padding

    @property
    def cached(self) -> int:
        """Positions of the generated cache. The last token is never fed back, so it has none."""
        return self.options.max_length - self.first_length

    @property
    def batch_key(self) -> BatchKey:
        """The key of the batch: samples with equal keys may share one."""
        asked, alone = self.options, self.number if self.alone else None
        numbers = asked.num_beams, asked.candidates, asked.repetition_penalty, asked.no_repeat_ngram_size
        return *numbers, asked.kind, asked.trie, alone


def samples_of_features(features: Iterable[Array], mask: Iterable[Ints], options: GenerationOptions) -> list[Sample]:
    """Make the samples of a batch of features.

    Parameters
    ----------
    features : B arrays float32
        Features of windows, recordings or images.
    mask : B arrays int64 [N]
        0 at the encoder's positions that are padding, 1 elsewhere.
    options : GenerationOptions
        The settings of all samples.
    """
    return [
        Sample(number, options.for_input(own), own, len(counted), counted)
        for number, (own, counted) in enumerate(zip(features, mask, strict=True))
    ]
