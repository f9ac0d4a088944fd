"""Text to token ids and back, as the checkpoint's own tokenizer does it, without torch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from tightbeam.deploy.bundle.reader import Bundle, BundleError

__all__ = ["InputError", "TextCodec", "load_codec"]


class InputError(ValueError):
    """An input that cannot be run; the message says what was wrong, what was expected, and the fix."""


class TextCodec(Protocol):
    """A tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids, the special tokens around a source text included."""
        ...

    def truncate(self, text: str, length: int) -> list[int]:
        """At most ``length`` token ids, the special tokens kept."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        ...


def load_codec(bundle: Bundle) -> TextCodec | None:
    """The bundle's tokenizer; None where the checkpoint had none. Raises BundleError where it cannot be read."""
    entry = bundle.manifest.tokenizer
    if entry is None:
        return None
    folder = bundle.path / entry.folder
    try:
        if entry.kind == "tokenizers":
            return _TokenizersCodec(str(folder / "tokenizer.json"))
        return _TransformersCodec(str(folder))
    except Exception as error:  # both libraries raise classes of their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BundleError(f"the tokenizer in {folder} cannot be read: {reason}") from error


class _TokenizersCodec:
    """``tokenizer.json``, read by the tokenizers library."""

    def __init__(self, path: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._cutting: Tokenizer | None = None
        self._turn = threading.Lock()

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def truncate(self, text: str, length: int) -> list[int]:
        with self._turn:
            if self._cutting is None:  # a copy, since truncation is a state of the tokenizer
                self._cutting = self._tokenizer.from_str(self._tokenizer.to_str())
            self._cutting.enable_truncation(length)
            return list(self._cutting.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class _TransformersCodec:
    """Tokenizers that have no ``tokenizer.json`` of their own (Marian): transformers' class, which needs no torch."""

    def __init__(self, folder: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise BundleError(
                "this model's tokenizer needs the transformers package, which is not installed; "
                "pip install transformers sentencepiece sacremoses, or pass token ids"
            ) from None
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, truncation=False, verbose=False).input_ids)

    def truncate(self, text: str, length: int) -> list[int]:
        return list(self._tokenizer(text, truncation=True, max_length=length).input_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
