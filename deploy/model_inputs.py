"""Texts and token ids of a loaded bundle: tokenized, checked, padded, and made into samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import Fix, GenerationError, InputError, PerFrontEnd
from tightbeam.deploy.generation.fields import TIMES
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.translation import from_language
from tightbeam.deploy.model_settings import ModelSettings
from tightbeam.deploy.padding import left_pad, right_pad
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.text.token_ids import check_ids, longest_source
from tightbeam.deploy.text.tokenizer import TextCodec

__all__ = ["ModelInputs"]


class ModelInputs(ModelSettings):
    """A loaded bundle, and the inputs that it takes."""

    def encode(self, text: str, *, truncate: bool = False, **settings: Any) -> tuple[list[int], int]:
        """Tokenize a source text.

        Parameters
        ----------
        text : str
            The source, or the prompt of a decoder-only model.
        truncate : bool
            Cut a text that is longer than the model's positions, which is an error otherwise. A prompt leaves as many
            positions as ``settings`` make new tokens.
        **settings
            Arguments of ``model.generate``; they matter to prompts, and ``source_language`` to a translator.

        Returns
        -------
        tokens : list of int
        cut : int
            Tokens of the text that were cut off; 0 where it fits.

        Raises
        ------
        InputError
            The text cannot be run.
        """
        if not isinstance(text, str):
            raise InputError(f"a text is {type(text).__name__}, expected str; pass text")
        if self.is_speech:
            raise InputError("this is a speech model; pass audio instead of text (Runner.transcribe)")
        if self.reads_images:
            raise InputError("this model reads images; pass them instead of text (Runner.read_images)")
        codec = self.require_tokenizer()
        if not text.strip():
            raise InputError("empty text; expected at least one word")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError("text holds half a character (a lone surrogate), which is not UTF-8; remove it") from None
        ids = codec.encode(text)
        limit, vocabulary = self.manifest.sizes.max_source, self.manifest.sizes.source_vocabulary
        if truncate and self.decoder_only:
            limit = max(1, min(limit, self._longest_prompt(settings)))
        length = len(ids)
        if length > limit and not truncate:
            problem = f"text of {length} tokens is longer than {longest_source(self.manifest.sizes)}"
            truncating = PerFrontEnd("--truncate (truncate=True)", "--truncate", '"truncate": true')
            raise InputError(problem, fix=Fix("shorten it, or cut it with {}", truncating))
        ids = codec.truncate(text, limit) if length > limit else ids
        ids = from_language(ids, self.manifest.generation, settings)
        if not ids:
            raise InputError("the tokenizer makes no token of this text; expected at least one word of its vocabulary")
        if max(ids) >= vocabulary:  # bart-large-cnn's tokenizer has a <mask> that the model lacks
            raise InputError(
                f"the tokenizer makes token {max(ids)} of this text, outside the model's vocabulary of {vocabulary}; "
                "remove the special token from the text"
            )
        return ids, length - len(ids)

    def check_ids(self, tokens: Sequence[int]) -> None:
        """Check token ids as one source.

        Parameters
        ----------
        tokens : sequence of int
            The source, or the prompt of a decoder-only model.

        Raises
        ------
        InputError
            There are none, too many, or one outside the vocabulary.
        """
        check_ids(tokens, self.manifest.sizes)

    def _longest_prompt(self, settings: Mapping[str, Any]) -> int:
        """Length of the longest prompt that leaves the positions for the new tokens of ``settings``; for one new token
        where ``settings`` limit the whole row."""
        options = self.options_for(1, settings)
        if options.limited_by == "max_length":
            return options.max_length - 1
        return self.manifest.sizes.max_target - options.max_length + 1

    def decode(self, sequence: Array | Sequence[int]) -> str:
        """Make text of one generated sequence.

        Parameters
        ----------
        sequence : integers [T]
            A row of ``SearchResult.sequences``; special tokens are left out.

        Returns
        -------
        str
            The text.

        Raises
        ------
        InputError
            The bundle has no tokenizer, or ``sequence`` holds something else than token ids.
        """
        codec = self.require_tokenizer()
        try:
            tokens = [int(token) for token in sequence]
        except (TypeError, ValueError):
            raise InputError("sequence is no row of token ids, expected integers [T]; pass one row at a time") from None
        return codec.decode(tokens)

    def require_tokenizer(self) -> TextCodec:
        """Return the tokenizer.

        Returns
        -------
        TextCodec

        Raises
        ------
        InputError
            The bundle has none.
        """
        if self._codec is None:
            problem = f"bundle {self.bundle.path} has no tokenizer, since its checkpoint has none"
            where = PerFrontEnd(" (Runner.generate, or --ids)", " (--ids)", "")
            raise InputError(problem, fix=Fix("pass token ids{}", where))
        return self._codec

    def sample(self, number: int, tokens: Sequence[int], settings: Mapping[str, Any]) -> Sample:
        """Return a sample for ``scheduler``.

        Parameters
        ----------
        number : int
            The caller's number of the sample.
        tokens : sequence of int
            Token ids that ``check_ids`` has no objection to.
        settings : mapping
            Arguments of ``model.generate``, for this sample alone.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model or prompt.
        """
        options = self.options_for(len(tokens), settings)
        return Sample.of_tokens(number, tokens, options, decoder_only=self.decoder_only)

    def sample_of_features(self, number: int, features: Array, settings: Mapping[str, Any]) -> Sample:
        """Return a sample of a speech model for ``scheduler``.

        Parameters
        ----------
        number, settings
            Those of `sample`.
        features : float32 [mels, frames]
            Log-mel features of a whole window, as `LogMel.features` makes them.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is wrong, as for `sample`.
        """
        options = self._for_one_window(self.options_for(1, settings))
        if options.aligned:
            where = "Runner.transcribe_segments and run-model --word-timestamps"
            raise GenerationError(f"{TIMES}=True is for {where}; leave it out")
        return Sample(number, options, features, self.manifest.sizes.max_source)

    def sample_of_recording(self, number: int, features: Array, settings: Mapping[str, Any]) -> Sample:
        """Return a sample of a speech model that takes whole recordings for ``scheduler``.

        Parameters
        ----------
        number, settings
            Those of `sample`.
        features : float32 [X, ...]
            Features of a recording, as `Recordings.features` makes them.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is wrong, as for `sample`.
        """
        assert self.recordings is not None
        options = self.options_for(1, settings).without_source_tokens("a recording").for_input(features)
        return Sample(number, options, features, self.recordings.positions(features))

    def sample_of_pixels(self, number: int, pixels: Array, settings: Mapping[str, Any]) -> Sample:
        """Return a sample of a model that reads images for ``scheduler``.

        Parameters
        ----------
        number, settings
            Those of `sample`.
        pixels : float32 [3, height, width] or [X, width]
            Pixels of an image in the model's size, as `ImageProcessor.pixels` makes them; or its patches, as
            `PatchProcessor.pixels` makes them.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is wrong, as for `sample`.
        """
        positions = len(pixels) if pixels.ndim == 2 else self.manifest.sizes.max_source
        return Sample(number, self.options_for(1, settings).without_source_tokens("an image"), pixels, positions)

    def pad(self, rows: Sequence[Sequence[int]], options: GenerationOptions) -> tuple[Array, Array]:
        """Pad rows of token ids to a batch, on the side that this model expects.

        Parameters
        ----------
        rows : sequence of sequences of int
            Token ids of each row.
        options : GenerationOptions
            The settings, for the pad token.

        Returns
        -------
        input_ids : int64 [B, N]
        attention_mask : int64 [B, N]
        """
        return left_pad(rows, options.pad_token_id) if self.decoder_only else right_pad(rows)

    def prompt_of(self, input_ids: Array) -> int:
        """Return the length of the prompt that the sequences of a batch begin with.

        Parameters
        ----------
        input_ids : integers [B, N]
            The batch.

        Returns
        -------
        int
            N, padding included, of a decoder-only model; 0 of an encoder-decoder.
        """
        return input_ids.shape[1] if self.decoder_only else 0
