"""Cases of a parametrised test of which ``make slow`` runs the most, and ``make test`` a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

STOOD_FOR = (
    *("umt5", "seamless_m4t", "blenderbot-small", "led", "t5gemma"),
    *("gemma3_text", "bloom", "speech_to_text", "cohere_asr"),
)
"""Families whose tokens ``make test`` does not compare, since another family's stand for them: T5's, SeamlessM4T v2's,
Blenderbot's, LongT5's, T5Gemma 2's (twice), MPT's, Moonshine's and Canary's. Each trace takes seconds."""


def slow_unless(cases: Iterable[tuple[Any, ...]], quick: Callable[..., bool]) -> list[Any]:
    """The cases as parameters of pytest, with the mark ``slow`` on those that are not ``quick(*case)``."""
    return [case if quick(*case) else pytest.param(*case, marks=pytest.mark.slow) for case in cases]
