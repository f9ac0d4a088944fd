"""The work of a refusal: the message of a caller's error, and the calls and the memory that it took."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tightbeam.deploy.errors import CallerError

__all__ = ["Refused", "refusal_of"]

MOST_MEMORY, MOST_CALLS, LONGEST_MESSAGE = 16 << 20, 20_000, 5000


@dataclass(frozen=True)
class Refused:
    """A refusal.

    Attributes
    ----------
    message : str
    calls : int
        Calls of Python's that were made, which stand for time: a loop in C takes a hundredth of one in Python.
    memory : int
        Bytes above those before.
    """

    message: str
    calls: int
    memory: int

    def check(self) -> None:
        """Assert the bounds of every refusal."""
        assert len(self.message.splitlines()) == 1 and 0 < len(self.message) < LONGEST_MESSAGE, self.message[:1000]
        assert self.calls < MOST_CALLS, (self.calls, self.message)
        assert self.memory < MOST_MEMORY, (self.memory, self.message)


def refusal_of(run: Callable[[], Any]) -> Refused | None:
    """Run a function. Return its refusal, or None if it was accepted; other errors pass."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    tracemalloc.start()
    sys.setprofile(count)
    try:
        run()
    except CallerError as error:
        sys.setprofile(before)
        return Refused(str(error), calls, tracemalloc.get_traced_memory()[1])
    finally:
        sys.setprofile(before)
        tracemalloc.stop()
    return None
