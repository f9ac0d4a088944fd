"""The checkpoint's own tokenizer: text to token ids and back, without torch."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError, InputError, first_line, is_panic
from tightbeam.deploy.generation.stop_strings import TokenTexts
from tightbeam.deploy.text.decoder_rules import DecoderRules, rules_of_decoder
from tightbeam.deploy.text.token_texts import PREFIX, NamedTokens, decoder_types
from tightbeam.deploy.text.truncation import Side

__all__ = ["TextCodec", "fits", "load_codec"]

SPECIAL_TOKENS = 8
"""More tokens than a tokenizer adds to a text. A text has no more others than bytes."""

CLEAN_UP_REACH = 19
"""Characters behind a space that decide whether transformers' ``clean_up_tokenization`` removes it: the lengths of the
ten texts that it replaces one after the other, less one each."""


class TextCodec(Protocol):
    """A tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a source text, special tokens included. Raises InputError."""
        ...

    def encode_output(self, text: str) -> list[int]:
        """Return the token ids of an output text, without special tokens. Raises InputError."""
        ...

    def truncate(self, text: str, length: int, side: Side = "right") -> list[int]:
        """Return the token ids of a source text, cut to ``length`` at one side; special tokens are counted, and stay.

        Raises InputError.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens. Raises BundleError."""
        ...

    @property
    def rules(self) -> DecoderRules:
        """What may change at the end of the text that `decode` returns."""
        ...

    @property
    def token_texts(self) -> TokenTexts:
        """The text of each token by itself. Raises GenerationError if the tokenizer does not give it."""
        ...


def fits(codec: TextCodec, text: str, most: int) -> bool:
    """Return True if a source text has at most so many tokens. Raises InputError."""
    return len(text.encode(errors="replace")) + SPECIAL_TOKENS <= most or len(codec.encode(text)) <= most


def load_codec(bundle: Bundle) -> TextCodec | None:
    """Load the tokenizer of a bundle.

    Parameters
    ----------
    bundle
        The bundle, whose manifest names the tokenizer's folder and kind.

    Returns
    -------
    TextCodec or None
        None if the checkpoint has no tokenizer.

    Raises
    ------
    BundleError
        The tokenizer's files cannot be read, or the package that reads them is not installed.
    """
    entry = bundle.manifest.tokenizer
    if entry is None:
        return None
    folder = bundle.path / entry.folder
    with _one_line(lambda reason: BundleError(f"the tokenizer in {folder} cannot be read: {reason}")):
        if entry.kind == "tokenizers":
            codec = _TokenizersCodec(str(folder / "tokenizer.json"))
            if (times := codec.times_of_text) > 1:
                raise BundleError(f"its post_processor repeats the text {times} times, expected once")
            return codec
        return _TransformersCodec(str(folder))


@contextmanager
def _one_line(error_of: Callable[[str], ValueError]) -> Iterator[None]:
    """Raise ``error_of(reason)`` for whatever a tokenizer library raises, panics included."""
    try:
        yield
    except BaseException as error:  # both libraries raise classes of their own
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise error_of(first_line(error)) from error


def _encoding_error(reason: str) -> InputError:
    return InputError(
        f"the tokenizer cannot encode this text ({reason}); pass another text or token ids, or restore the "
        "checkpoint's tokenizer and export it again"
    )


def _decoding_error(reason: str) -> BundleError:
    return BundleError(
        f"the tokenizer cannot decode these tokens ({reason}); restore the checkpoint's tokenizer and export it again"
    )


class _TokenizersCodec:
    """``tokenizer.json``, read by the tokenizers library."""

    def __init__(self, path: str) -> None:
        from tokenizers import Tokenizer

        self._path = path
        self._tokenizer = Tokenizer.from_file(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._truncating: Tokenizer | None = None
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with _one_line(_encoding_error):
            return list(self._tokenizer.encode(text).ids)

    def encode_output(self, text: str) -> list[int]:
        with _one_line(_encoding_error):
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def truncate(self, text: str, length: int, side: Side = "right") -> list[int]:
        with self._lock, _one_line(_encoding_error):
            if self._truncating is None:
                # Another one, since truncation is a state of the tokenizer. It is read again, since a tokenizer writes
                # itself in a list of all ids below its largest: gigabytes for one id of 2**31.
                self._truncating = self._tokenizer.from_file(self._path)
                self._truncating.no_padding()
            self._truncating.enable_truncation(length, direction=side)
            return list(self._truncating.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        with _one_line(_decoding_error):
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    @property
    def times_of_text(self) -> int:
        """The number of times that the post-processor repeats a text. A cut text of n pieces takes n ** times steps."""
        processor = self._tokenizer.post_processor
        return 1 if processor is None else _times_of_text(json.loads(processor.__getstate__()))

    @cached_property
    def rules(self) -> DecoderRules:
        tokenizer, decoder = self._tokenizer, self._tokenizer.decoder
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        byte_tokens = (tokenizer.token_to_id(name) for byte in range(256) if (name := f"<0x{byte:02X}>") not in special)

        def is_hidden(token: int) -> bool:
            name = tokenizer.id_to_token(token)
            return name is None or name in special

        return rules_of_decoder(
            None if decoder is None else json.loads(decoder.__getstate__()),
            frozenset(token for token in byte_tokens if token is not None),
            is_hidden,
        )

    @cached_property
    def token_texts(self) -> TokenTexts:
        tokenizer, decoder = self._tokenizer, self._tokenizer.decoder

        def join(names: list[str]) -> str:
            with _one_line(_decoding_error):
                return " ".join(names) if decoder is None else str(decoder.decode(names))

        with _one_line(_encoding_error):
            prefix = list(tokenizer.encode(PREFIX, add_special_tokens=False).tokens)
        types = frozenset() if decoder is None else decoder_types(json.loads(decoder.__getstate__()))
        return NamedTokens(tokenizer.id_to_token, join, prefix, types)


def _times_of_text(processor: dict[str, Any]) -> int:
    """Count a text in the output of a post-processor, as ``tokenizer.json`` describes it."""
    if processor["type"] == "TemplateProcessing":
        return sum(piece.get("Sequence", {}).get("id") == "A" for piece in processor["single"])
    if processor["type"] == "Sequence":
        return math.prod(_times_of_text(each) for each in processor["processors"])
    return 1


class _TransformersCodec:
    """A tokenizer without ``tokenizer.json`` (Marian), read by transformers' class, which needs no torch."""

    def __init__(self, folder: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise BundleError(
                "this model's tokenizer needs the transformers package, which is not installed; "
                "pip install transformers sentencepiece sacremoses, or pass token ids"
            ) from None
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._lock = threading.Lock()  # calls change the tokenizer's state, and lines are read in a thread of their own

    def encode(self, text: str) -> list[int]:
        with self._lock, _one_line(_encoding_error):
            return list(self._tokenizer(text, truncation=False, verbose=False).input_ids)

    def encode_output(self, text: str) -> list[int]:
        with self._lock, _one_line(_encoding_error):
            return list(self._tokenizer(text_target=text, add_special_tokens=False, verbose=False).input_ids)

    def truncate(self, text: str, length: int, side: Side = "right") -> list[int]:
        with self._lock, _one_line(_encoding_error):
            self._tokenizer.truncation_side = side
            return list(self._tokenizer(text, truncation=True, max_length=length).input_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        with self._lock, _one_line(_decoding_error):
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    @property
    def rules(self) -> DecoderRules:
        cleaned = bool(getattr(self._tokenizer, "clean_up_tokenization_spaces", False))
        return DecoderRules(last_token=True, spaces=True, reach=CLEAN_UP_REACH if cleaned else 0)

    @cached_property
    def token_texts(self) -> TokenTexts:
        tokenizer = self._tokenizer

        def join(names: list[str]) -> str:
            with self._lock, _one_line(_decoding_error):
                return str(tokenizer.convert_tokens_to_string(names))

        with self._lock, _one_line(_encoding_error):
            names = {token: name for name, token in tokenizer.get_vocab().items()}
            ids = tokenizer(PREFIX, add_special_tokens=False).input_ids
            prefix = tokenizer.convert_ids_to_tokens(ids)
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        types = frozenset() if decoder is None else decoder_types(json.loads(decoder.__getstate__()))
        return NamedTokens(names.get, join, prefix, types)
