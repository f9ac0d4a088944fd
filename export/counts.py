"""What is counted within a step of an export, for the one who watches the export.

Any function of an export may count: ``counted(items, "layers")`` in place of ``items`` reports how many items are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["OnCount", "count", "counted", "watched"]

OnCount = Callable[[str, int, int], None]
"""Called with what is counted, how many are done, and of how many; 0 of 0 for work without a count."""
Item = TypeVar("Item")


def _nobody(what: str, done: int, total: int) -> None:
    """Count for nobody."""


_watcher: ContextVar[OnCount] = ContextVar("watcher", default=_nobody)


@contextmanager
def watched(on_count: OnCount) -> Iterator[None]:
    """Context in which ``count`` calls ``on_count``."""
    token = _watcher.set(on_count)
    try:
        yield
    finally:
        _watcher.reset(token)


def count(what: str, done: int = 0, total: int = 0) -> None:
    """Report what a step does now: ``done`` of ``total`` are done; nothing is counted if both are 0."""
    _watcher.get()(what, done, total)


def counted(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Iterate over items, and report how many are done; ``what``: their name in the plural, and what is done."""
    count(what, 0, len(items))
    for number, item in enumerate(items, start=1):
        yield item
        count(what, number, len(items))
