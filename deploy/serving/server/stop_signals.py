"""The signals that ask a command to stop, as a flag."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

__all__ = ["StopSignals"]

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """SIGINT and SIGTERM set a flag inside this context, instead of raising KeyboardInterrupt wherever Python is.

    An exception between the start of a process and the line that would stop it leaves the process behind. A shell
    without job control starts a command in the background with SIGINT ignored; inside this context it is heeded.
    """

    def __init__(self) -> None:
        self._received = False

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._receive) for number in NUMBERS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def raise_interrupt(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._received:
            raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = True
