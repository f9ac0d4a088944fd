"""A cache of what is made of settings, whose memory is bounded though a list of settings may have megabytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

__all__ = ["SettingsCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST_LIGHT, MOST_HEAVY = 32, 2
"""The most entries of settings with few parts, which most requests have, and of settings with many."""
HEAVY = 512
"""Parts (numbers, lists, 8 characters of a text) of heavy settings. A part takes up to 300 bytes."""


class SettingsCache(Generic[K, V]):
    """A function that returns the same object for equal settings, if these were among the last ones.

    Parameters
    ----------
    make : function
        Makes the object of settings, or of a tuple of their parts.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        self._light, self._heavy = lru_cache(MOST_LIGHT)(make), lru_cache(MOST_HEAVY)(make)
        self._last: tuple[K, V] | None = None  # the samples of a request have one object of settings

    def __call__(self, settings: K) -> V:
        """Return the object of ``settings``. Raises what making it raises."""
        last = self._last
        if last is not None and last[0] is settings:
            return last[1]
        made = self._heavy(settings) if _is_heavy(settings) else self._light(settings)
        self._last = settings, made
        return made

    def clear(self) -> None:
        """Drop all objects."""
        self._last = None
        self._light.cache_clear()
        self._heavy.cache_clear()


def _is_heavy(settings: object) -> bool:
    """True if settings have `HEAVY` parts; no more of them are looked at."""
    parts, waiting = 0, [settings]
    while waiting and parts < HEAVY:
        value: Any = waiting.pop()
        if isinstance(value, str):
            parts += len(value) // 8
            continue
        if isinstance(value, Mapping):
            value = list(value.values())
        elif is_dataclass(value):
            value = list(vars(value).values())
        if isinstance(value, list | tuple):
            parts += len(value)
            if parts < HEAVY:
                waiting += [each for each in value if not isinstance(each, int | float)]
    return parts >= HEAVY
