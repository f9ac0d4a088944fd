"""Names of a served model's inputs and outputs."""

from __future__ import annotations

__all__ = [
    "AUDIO",
    "FINISHED",
    "INDEX",
    "INPUT_IDS",
    "LENGTHS",
    "OUTPUT_IDS",
    "OUTPUT_LENGTHS",
    "SCORES",
    "TEXT",
]

TEXT = "TEXT"
"""Input: string [b, 1]. Output: string [b, S], S sequences of each row."""
INPUT_IDS = "INPUT_IDS"
"""Input: int64 [b, n], token ids in place of TEXT."""
AUDIO = "AUDIO"
"""Input of a speech model: float32 [b, n], samples in -1..1 at the model's rate."""
LENGTHS = "LENGTHS"
"""Input: int32 [b, 1], the lengths of the rows of INPUT_IDS or AUDIO without padding."""
SCORES = "SCORES"
"""Output: float32 [b, S] of beam search, [b, 0] of greedy search."""
OUTPUT_IDS = "OUTPUT_IDS"
"""Output: int64 [b, S, T], token ids, padded."""
OUTPUT_LENGTHS = "OUTPUT_LENGTHS"
"""Output: int32 [b, S], the lengths of OUTPUT_IDS without padding."""
INDEX = "INDEX"
"""Output of a streaming model: int32 [1, 1], the row that a response belongs to."""
FINISHED = "FINISHED"
"""Output of a streaming model: bool [1, 1], True in the last response of a row."""
