"""A tiny tokenizer of the class that Whisper has, for the vocabulary `TIMESTAMPS` of `support.checkpoints.timestamps`.

Its tokens are bytes, halves of characters, punctuation, and tokens of languages, tasks and timestamps.
"""

from __future__ import annotations

from typing import Any

from transformers import AddedToken, WhisperTokenizer

__all__ = ["whisper_tokenizer"]

TEXTS = (
    *(" the", " a", " cat", "s", "ing", " re", "peat", " New", " York", "O", "'", "'s", "t", " ", "."),
    *(",", "!", "?", ":", ")", "]", " (", ' "', '"', " “", "”", " -", "-", "。", "\N{FULLWIDTH COMMA}", "、"),
    *("你", "好", "日", " é", "\u00a0"),
)
PIECES = ((0xE4,), (0xBD,), (0xA0,), (0xE5, 0xA5), (0xBD, 0x20), (0xF0, 0x9F), (0x98,), (0x80,))
"""Bytes of characters that several tokens make together, or that no others complete."""
SPECIAL = {
    **{45: "<|endoftext|>", 46: "<|startoftranscript|>", 47: "<|en|>", 48: "<|de|>", 49: "<|fr|>"},
    **{50: "<|transcribe|>", 51: "<|translate|>", 52: "<|startofprev|>", 53: "<|startoflm|>", 54: "<|nospeech|>"},
    55: "<|notimestamps|>",
}


def whisper_tokenizer() -> Any:
    """The tokenizer: text below 45, timestamps from 56 on."""
    texts = [*(text.encode() for text in TEXTS), *map(bytes, PIECES)]
    texts += [bytes([48 + number]) for number in range(45 - len(texts))]
    vocabulary = {"".join(map(_letter, text)): token for token, text in enumerate(texts)}
    assert len(vocabulary) == 45
    tokenizer = WhisperTokenizer(vocab={**vocabulary, "<|endoftext|>": 45}, merges=[])
    tokenizer.add_special_tokens({"extra_special_tokens": [SPECIAL[token] for token in sorted(SPECIAL)]})
    tokenizer.add_tokens([AddedToken(f"<|{0.02 * place:.2f}|>", special=False) for place in range(51)])
    return tokenizer


def _letter(byte: int) -> str:
    """The letter that stands for a byte in a vocabulary of bytes: itself where it can be printed."""
    unprinted = [*range(33), *range(127, 161), 173]
    return chr(256 + unprinted.index(byte)) if byte in unprinted else chr(byte)
