"""Whisper's conventions: its tokens in their order, and its generation config."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from transformers import AddedToken, GenerationConfig, WhisperTokenizer

from tools.training import byte_pairs
from tools.zoo.recordings import LANGUAGES, WINDOW_S

STEP_S = 0.02  # between two timestamps, and between two positions of the encoder
STEPS = round(WINDOW_S / STEP_S)
POSITIONS = 128  # of the decoder
NOT_SPEECH = '"#()*+/:;<=>@[\\]^_`{|}~'
SPECIAL_TOKENS = (
    *("<|startoftranscript|>", *(f"<|{language}|>" for language in LANGUAGES), "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)


def new_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Byte-level BPE with so many tokens of text, then Whisper's special tokens and timestamps."""
    trained = json.loads(byte_pairs(texts, vocabulary, [], prefix_space=False).to_str())["model"]
    tokenizer = WhisperTokenizer(
        vocab={**trained["vocab"], "<|endoftext|>": len(trained["vocab"])},
        merges=[tuple(pair) for pair in trained["merges"]],
        model_max_length=POSITIONS,
    )
    tokenizer.add_special_tokens({"extra_special_tokens": list(SPECIAL_TOKENS)})
    tokenizer.add_tokens([AddedToken(f"<|{STEP_S * step:.2f}|>", special=False) for step in range(STEPS + 1)])
    tokenizer.set_prefix_tokens()  # again, since it needs the special tokens
    return tokenizer


def generation_config(tokenizer: Any, alignment_heads: list[list[int]]) -> GenerationConfig:
    """What the published models have, for these tokens."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in (*SPECIAL_TOKENS, "<|endoftext|>")}
    end, vocabulary = ids["<|endoftext|>"], tokenizer.get_vocab()
    symbols = [vocabulary[letter] for symbol in NOT_SPEECH for letter in (symbol, f"Ġ{symbol}") if letter in vocabulary]
    unspoken = ("startoftranscript", "translate", "transcribe", "startoflm", "startofprev", "nospeech")
    return GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        is_multilingual=True,
        lang_to_id={f"<|{language}|>": ids[f"<|{language}|>"] for language in LANGUAGES},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        task="transcribe",
        suppress_tokens=sorted({*symbols, *(ids[f"<|{name}|>"] for name in unspoken)}),
        begin_suppress_tokens=[vocabulary["Ġ"], end],
        max_initial_timestamp_index=50,
        return_timestamps=False,
        alignment_heads=alignment_heads,
        max_length=POSITIONS,
    )
