"""The steps of an export, by name, and their display while they run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tightbeam.deploy.console import console as error_console

__all__ = ["STEPS", "ShownSteps", "show_steps"]

STEPS = (
    "loading",
    "generating with torch",
    "tracing",
    "rewriting",
    "measuring attention",
    "measuring products",
    "writing",
    "comparing with float32",
    "comparing with torch",
)


class ShownSteps:
    """The display of an export's steps: on a terminal a bar for each; otherwise a line for each, with its time.

    Parameters
    ----------
    console
        Console on standard error.

    Attributes
    ----------
    seconds : dict of str to float
        Time of each step that has ended.
    """

    def __init__(self, console: Console) -> None:
        self.seconds: dict[str, float] = {}
        self._console = console
        self._running, self._since = "", 0.0
        columns = (
            TextColumn("{task.description:22}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        )
        self._bars = Progress(*columns, console=console) if console.is_terminal else None
        if self._bars is not None:
            self._bars.start()

    def begin(self, step: str) -> None:
        """Show that a step begins, and the time of the one before."""
        self.end()
        self._running, self._since = step, time.monotonic()
        if self._bars is None:
            self._console.print(step, end="")
            self._console.file.flush()
        else:
            self._task = self._bars.add_task(step, total=None, said="")

    def count(self, what: str, done: int, total: int) -> None:
        """Show what the step does, on a terminal alone."""
        if self._bars is not None and self._running:
            said = f"{done:,} of {total:,} {what}" if total else what
            self._bars.update(self._task, completed=done, total=total or None, said=said)

    def end(self, *, failed: bool = False) -> None:
        """Show the time of the running step, if there is one."""
        if not self._running:
            return
        took = time.monotonic() - self._since
        if not failed:
            self.seconds[self._running] = took
        if self._bars is None:
            self._console.print("" if failed else f"  {took:.1f} s")
        else:
            self._bars.stop_task(self._task)
            if not failed:
                self._bars.update(self._task, completed=1, total=1, said="")
        self._running = ""

    def close(self, *, failed: bool) -> None:
        """End the running step, and the display."""
        self.end(failed=failed)
        if self._bars is not None:
            self._bars.stop()


@contextmanager
def show_steps() -> Iterator[ShownSteps]:
    """Display each step as it begins, what is counted within it, and its time when it has ended."""
    shown = ShownSteps(error_console())
    failed = True
    try:
        yield shown
        failed = False
    finally:
        shown.close(failed=failed)
