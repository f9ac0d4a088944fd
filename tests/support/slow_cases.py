"""Cases of a parametrised test of which ``make slow`` runs the most, and ``make test`` a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_unless(cases: Iterable[tuple[Any, ...]], quick: Callable[..., bool]) -> list[Any]:
    """The cases as parameters of pytest, with the mark ``slow`` on those that are not ``quick(*case)``."""
    return [case if quick(*case) else pytest.param(*case, marks=pytest.mark.slow) for case in cases]
