"""Texts and token ids of a loaded model: encoding, decoding and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.chat.conversation import Conversation
from tightbeam.deploy.chat.messages import ANSWER_TOKENS, TextSource, check_messages
from tightbeam.deploy.chat.template import ChatTemplate, load_chat_template
from tightbeam.deploy.errors import Fix, InputError, PerFrontEnd
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.translation import LANGUAGES, asks_for_language, from_language
from tightbeam.deploy.model.settings import ModelSettings
from tightbeam.deploy.text.decoder_rules import DecoderRules
from tightbeam.deploy.text.languages import likely_name
from tightbeam.deploy.text.rows import ragged_rows
from tightbeam.deploy.text.token_ids import check_batch, check_ids, checked_mask, longest_source
from tightbeam.deploy.text.tokenizer import TextCodec, fits
from tightbeam.deploy.text.truncation import Side, Truncation, checked_truncation, truncation_side

__all__ = ["Texts"]

MOST_TOKENS = 1 << 31
"""No tokenizer has a token from here on."""


class Texts:
    """Texts and token ids of a loaded model.

    Parameters
    ----------
    bundle : Bundle
    settings : ModelSettings
        The settings, which say how many new tokens a prompt leaves positions for.
    codec : TextCodec or None
        The tokenizer; None for a bundle without one.
    """

    def __init__(self, bundle: Bundle, settings: ModelSettings, codec: TextCodec | None) -> None:
        self._bundle, self._settings, self._codec = bundle, settings, codec
        self._about, self._sizes = bundle.manifest, bundle.manifest.sizes

    @property
    def has_tokenizer(self) -> bool:
        """True for a bundle with a tokenizer."""
        return self._codec is not None

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The checkpoint's chat template; None for a bundle without one."""
        return load_chat_template(self._bundle)

    def require_chat_template(self) -> ChatTemplate:
        """Return the chat template.

        Returns
        -------
        ChatTemplate

        Raises
        ------
        InputError
            The bundle has no chat template.
        """
        if not self._about.reads_text:
            kind, input_ = ("is a speech model", "audio") if self._about.speech else ("reads images", "images")
            raise InputError(f"this model {kind}, and takes no messages; pass {input_}")
        if self.chat_template is None:
            raise InputError(
                f"bundle {self._bundle.path} has no chat template, since its checkpoint has none; export it again with "
                "--chat-template FILE, or pass text"
            )
        return self.chat_template

    def encode(self, source: TextSource, *, truncate: Truncation = False, **settings: Any) -> tuple[list[int], int]:
        """Tokenize a source; `Runner.encode` documents arguments, results and errors."""
        if not isinstance(source, str | list | tuple):
            fix = "pass [messages] for one conversation" if isinstance(source, Mapping) else "pass one"
            raise InputError(f"a text is {type(source).__name__}, expected str or a list of messages; {fix}")
        if self._about.speech:
            raise InputError("this is a speech model; pass audio instead of text (Runner.transcribe)")
        if self._about.image:
            raise InputError("this model reads images; pass them instead of text (Runner.read_images)")
        codec = self.require_tokenizer()
        side = self.cut_side(source, truncate)
        if isinstance(source, str):
            _check_text(source)
            kind, ids = "text", codec.encode(source)
            within: Callable[[int], list[int]] = partial(codec.truncate, source, side=side or "right")
        else:
            conversation = Conversation(check_messages(source), self.require_chat_template(), codec)
            kind, ids, within = "conversation", conversation.ids(), conversation.within
        limit, vocabulary = self._sizes.max_source, self._sizes.source_vocabulary
        if side and self._sizes.decoder_only:
            limit = max(1, min(limit, self._longest_prompt(settings)))
        length = len(ids)
        if length > limit and not side:
            problem = f"{kind} of {length} tokens is longer than {longest_source(self._sizes)}"
            truncating = PerFrontEnd("--truncate (truncate=True)", "--truncate", '"truncate": true')
            raise InputError(problem, fix=Fix("shorten it, or cut it with {}", truncating))
        ids = within(limit) if length > limit else ids
        generation = self._about.generation
        if asks_for_language(generation, settings):
            settings["source_language"] = likely_name(source if isinstance(source, str) else "", generation[LANGUAGES])
        ids = from_language(ids, generation, settings)
        if not ids:
            raise InputError(
                f"the tokenizer makes no token of this {kind}; expected at least one word of its vocabulary"
            )
        if max(ids) >= vocabulary:  # bart-large-cnn's tokenizer has a <mask> that the model lacks
            raise InputError(
                f"the tokenizer makes token {max(ids)} of this {kind}, outside the model's vocabulary of {vocabulary}; "
                "remove the special token from it"
            )
        return ids, length - len(ids)

    def fits(self, text: str) -> bool:
        """Return True if a text has no more tokens than the model has positions. Raises InputError."""
        return fits(self.require_tokenizer(), text, self._sizes.max_source)

    def answer_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with the most new tokens of an answer, for a decoder-only model that nothing else limits.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        """
        if not self._is_open(settings):
            return dict(settings)
        return {**settings, "max_new_tokens": min(ANSWER_TOKENS, self._sizes.max_target // 2)}

    def _is_open(self, settings: Mapping[str, Any]) -> bool:
        """Return True if nothing limits an answer of a decoder-only model."""
        return self._sizes.decoder_only and not self._settings.limits_length(settings)

    def encode_conversation(
        self, messages: TextSource, settings: Mapping[str, Any], *, truncate: Truncation = False
    ) -> tuple[list[int], int, dict[str, Any]]:
        """Tokenize a conversation, and limit its answer if nothing else does.

        Parameters
        ----------
        messages
            The messages.
        settings
            Settings of ``model.generate``.
        truncate
            As for `encode`.

        Returns
        -------
        tokens : list of int
        cut : int
            Number of tokens that were cut off.
        settings : dict
            The settings. An answer without a limit has those of `answer_settings`, or as many new tokens as the
            conversation leaves positions for.

        Raises
        ------
        InputError, GenerationError
            The conversation cannot be run.
        """
        limited = self.answer_settings(settings)
        tokens, cut = self.encode(messages, truncate=truncate, **limited)
        if self._is_open(settings):
            limited["max_new_tokens"] = min(limited["max_new_tokens"], self._sizes.max_target - len(tokens))
        return tokens, cut, limited

    def cut_side(self, source: TextSource, truncate: Truncation) -> Side | None:
        """Return the side at which a caller's ``truncate`` cuts a source; None if it cuts none. A conversation loses
        its oldest turns. Raises InputError."""
        checked, whole = checked_truncation(truncate), isinstance(source, str)
        if checked == "right" and not whole:
            raise InputError("truncate=right is for texts, and a conversation loses its oldest turns; pass left")
        return truncation_side(checked, decoder_only=self._sizes.decoder_only or not whole)

    def check_ids(self, tokens: Sequence[int]) -> None:
        """Check token ids as one source.

        Parameters
        ----------
        tokens : sequence of int
            The source, or the prompt of a decoder-only model.

        Raises
        ------
        InputError
            There are no tokens, too many, or one outside the vocabulary.
        """
        check_ids(tokens, self._sizes)

    def rows(self, input_ids: Any, attention_mask: Any, options: GenerationOptions) -> list[tuple[Ints, Ints]]:
        """Read token ids as `Runner.generate` takes them.

        Parameters
        ----------
        input_ids : integers [B, N], or sequence of B sequences of int
        attention_mask : integers [B, N] or None
        options : GenerationOptions
            The settings, for the pad token.

        Returns
        -------
        list of (int64 [N], int64 [N])
            The ids and the mask of each row. Rows of different lengths stay without padding.

        Raises
        ------
        InputError
            The ids or the mask have a wrong shape, type or value.
        """
        ragged = ragged_rows(input_ids)
        if ragged is None:
            ids, mask = check_batch(input_ids, attention_mask, options, self._sizes)
            return list(zip(ids, mask, strict=True))
        if attention_mask is not None:
            raise InputError("attention_mask is for rows of one length; leave it out, rows are not padded here")
        found = []
        for index, row in enumerate(ragged):
            try:
                self.check_ids(row)
            except InputError as error:
                raise InputError(f"row {index} of input_ids: {error}") from None
            ids = np.array([row], np.int64)
            found.append((ids[0], checked_mask(None, ids, options, self._sizes)[0]))
        return found

    def _longest_prompt(self, settings: Mapping[str, Any]) -> int:
        """Return the length of the longest prompt that leaves positions for the new tokens of ``settings``, or for one
        new token if ``settings`` limit the whole row."""
        options = self._settings.options(settings)
        if options.limited_by == "max_length":
            return options.max_length - 1
        return self._sizes.max_target - options.max_length + 1

    def decode(self, sequence: Array | Sequence[int]) -> str:
        """Make text of one generated sequence; `Runner.decode` documents it."""
        codec = self.require_tokenizer()
        try:
            tokens = [int(token) for token in sequence]
        except (TypeError, ValueError):
            raise InputError(
                "sequence is not a row of token ids, expected integers [T]; pass one row at a time"
            ) from None
        outside = next((token for token in tokens if not 0 <= token < MOST_TOKENS), None)
        if outside is not None:
            raise InputError(f"sequence holds {outside}, which is not a token id; pass one row of generated tokens")
        return codec.decode(tokens)

    @property
    def decoder_rules(self) -> DecoderRules:
        """The changes that further tokens may make at the end of a text that `decode` returns."""
        return self.require_tokenizer().rules

    def require_tokenizer(self) -> TextCodec:
        """Return the tokenizer.

        Returns
        -------
        TextCodec

        Raises
        ------
        InputError
            The bundle has no tokenizer.
        """
        if self._codec is None:
            problem = f"bundle {self._bundle.path} has no tokenizer, since its checkpoint has none"
            where = PerFrontEnd(" (Runner.generate, or --ids)", " (--ids)", "")
            raise InputError(problem, fix=Fix("pass token ids{}", where))
        return self._codec


def _check_text(text: str) -> None:
    """Raise InputError for a text without a word, and for one that is not UTF-8."""
    if not text.strip():
        raise InputError("empty text; expected at least one word")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("text holds half a character (a lone surrogate), which is not UTF-8; remove it") from None
