"""Names of a served model's inputs and outputs."""

from __future__ import annotations

__all__ = [
    "ALTERNATIVE_IDS",
    "ALTERNATIVE_SCORES",
    "ATTENTION",
    "AUDIO",
    "AUDIO_FILE",
    "FINISHED",
    "FINISH_REASON",
    "IMAGE",
    "INDEX",
    "INPUT_IDS",
    "LANGUAGE",
    "LANGUAGE_PROBABILITY",
    "LENGTHS",
    "MESSAGES",
    "NEW_TOKENS",
    "OUTPUT_IDS",
    "OUTPUT_LENGTHS",
    "PAGES",
    "REPORTS",
    "SCORES",
    "SEGMENTS",
    "SOURCE_TOKENS",
    "TEXT",
    "TOKEN_SCORES",
    "TRUNCATED_SIDE",
    "TRUNCATED_TOKENS",
]

TEXT = "TEXT"
"""Input: string [b, 1]. Output: string [b, S], S sequences of each row."""
MESSAGES = "MESSAGES"
"""Input: string [b, 1], the messages of a conversation as JSON, in place of TEXT."""
INPUT_IDS = "INPUT_IDS"
"""Input: int64 [b, n], token ids in place of TEXT."""
AUDIO = "AUDIO"
"""Input of a speech model: float32 [b, n], samples in -1..1 at the model's rate."""
AUDIO_FILE = "AUDIO_FILE"
"""Input of a speech model, in place of AUDIO: string [b, 1], the bytes of an audio file, or their base64."""
IMAGE = "IMAGE"
"""Input of a model that reads images: string [b, 1], the bytes of an image file, or their base64."""
LENGTHS = "LENGTHS"
"""Input: int32 [b, 1], the lengths of the rows of INPUT_IDS or AUDIO without padding."""
SCORES = "SCORES"
"""Output of beam search: float32 [b, S]."""
OUTPUT_IDS = "OUTPUT_IDS"
"""Output: int64 [b, S, T], token ids, padded."""
OUTPUT_LENGTHS = "OUTPUT_LENGTHS"
"""Output: int32 [b, S], the lengths of OUTPUT_IDS without padding."""
FINISH_REASON = "FINISH_REASON"
"""Output: string [b, S], the reason why each sequence ended: end_token, stop_string or length. For a recording of
several windows, or an image of several pages, the reason of the last one; empty for a recording of silence."""
SOURCE_TOKENS = "SOURCE_TOKENS"
"""Output: int32 [b, 1], the tokens of TEXT or INPUT_IDS that the model read; 0 for recordings and images."""
NEW_TOKENS = "NEW_TOKENS"
"""Output: int32 [b, 1], the tokens generated for a row, in all its sequences."""
TRUNCATED_TOKENS = "TRUNCATED_TOKENS"
"""Output of a request that cuts texts: int32 [b, 1], the tokens of each row that ``truncate`` cut off."""
TRUNCATED_SIDE = "TRUNCATED_SIDE"
"""Output of a request that cuts texts: string [b, 1], the side that was cut, left or right; empty for a whole row."""
REPORTS = "REPORTS"
"""Output of a request with ``glossary``: string [b, 1], the terms that could not be placed in each text, as JSON."""
TOKEN_SCORES = "TOKEN_SCORES"
"""Output with ``return_token_scores``: float32 [b, S, T], of each token of OUTPUT_IDS, 0 for given ones and padding."""
ALTERNATIVE_IDS = "ALTERNATIVE_IDS"
"""Output with ``return_alternatives``: int64 [b, S, T, n], the best tokens in place of each of OUTPUT_IDS; -1 for none,
in place of given tokens and padding too."""
ALTERNATIVE_SCORES = "ALTERNATIVE_SCORES"
"""Output with ``return_alternatives``: float32 [b, S, T, n], their scores; 0 for none."""
ATTENTION = "ATTENTION"
"""Output of a translator with ``return_attention``: float32 [b, S, T, N], of each of OUTPUT_IDS to each source token; 0
for given ones and padding."""
SEGMENTS = "SEGMENTS"
"""Output of a speech model: string [b, 1], the segments of a row that ran by timestamps, as JSON; null for another
row."""
LANGUAGE = "LANGUAGE"
"""Output of a multilingual Whisper: string [b, 1], the code of each recording's language; empty if it is unknown."""
LANGUAGE_PROBABILITY = "LANGUAGE_PROBABILITY"
"""Output of a multilingual Whisper: float32 [b, 1], the probability of the language that was found; 0 if the language
was given, or the probability is unknown."""
PAGES = "PAGES"
"""Output of a model that reads images: string [b, 1], the results of the pages of an image with several, as JSON; null
for another row."""
INDEX = "INDEX"
"""Output of a streaming model: int32 [1, 1], the row that a response belongs to."""
FINISHED = "FINISHED"
"""Output of a streaming model: bool [1, 1], True in the last response of a row."""
