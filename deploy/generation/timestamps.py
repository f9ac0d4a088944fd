"""Rules of Whisper's timestamps: the token ids that they are about."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TimestampRules"]


@dataclass(frozen=True)
class TimestampRules:
    """The tokens of a Whisper checkpoint that has timestamps.

    Attributes
    ----------
    first : int
        The token of 0.00 s. All tokens from it on are timestamps, one for each 0.02 s; the one before it is
        ``<|notimestamps|>``, which must not occur.
    eos : int
        The end-of-sequence token. Tokens below it are text.
    latest_start : int or None
        The largest first timestamp, counted from 0.00 s in timestamps; None allows all.
    """

    first: int
    eos: int
    latest_start: int | None = None
