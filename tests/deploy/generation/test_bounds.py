"""Every setting of the table of settings meets hostile values: each is accepted, or refused in one line by its name."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from support.options import resolve
from tightbeam.deploy.errors import CallerError
from tightbeam.deploy.generation.fields import FIELDS, ModelKind
from tightbeam.deploy.generation.values import Integer

MOST_MEMORY, LONGEST_MESSAGE = 16 << 20, 5000


def _deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


HOSTILE: dict[str, Callable[[], Any]] = {
    "2**31": lambda: 2**31,
    "2**70": lambda: 2**70,
    "-1": lambda: -1,
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "long text": lambda: "x" * 10**6,
    "long list": lambda: ["x"] * 10**6,
    "many ids": lambda: [-1] * (2 * 10**6),
    "many lists": lambda: [[-1]] * 10**6,
    "deep list": _deep,
    "object": lambda: {"x": 1},
}
NAMES = sorted({own.name for own in FIELDS if ModelKind.TEXT in own.models and not own.of_checkpoint})


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", NAMES)
def test_hostile_values_are_accepted_or_refused_by_name(name: str, kind: str) -> None:
    value = HOSTILE[kind]()
    tracemalloc.start()
    try:
        resolve(**{name: value})
    except CallerError as error:
        message = str(error)
        assert name in message and "\n" not in message and len(message) < LONGEST_MESSAGE
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def test_every_integer_has_an_upper_bound() -> None:
    assert all(own.type.most < 2**64 for own in FIELDS if isinstance(own.type, Integer))


def test_messages_clip_long_names() -> None:
    with pytest.raises(CallerError) as refused:
        resolve(**{"x" * 10**6: 1})
    assert len(str(refused.value)) < LONGEST_MESSAGE
