"""The progress bar of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tightbeam.deploy.console import console

__all__ = ["RunProgress", "progress_of"]


class RunProgress:
    """The progress of a run: inputs, or for recordings seconds of sound.

    The seconds of recordings that are not read yet are taken to be the mean of the others.

    Parameters
    ----------
    bar : Progress
        The bar that shows it.
    inputs : int or None
        All inputs; None if the number is not known.
    done : int
        Inputs that have a result from an earlier run.
    sound : bool
        Count seconds of sound.
    """

    def __init__(self, bar: Progress, inputs: int | None, done: int = 0, *, sound: bool = False) -> None:
        self._bar, self._inputs, self._done, self._sound = bar, inputs, done, sound
        self._to_read = None if inputs is None else inputs - done
        self._read, self._read_s = 0, 0.0
        self._task = bar.add_task("generating", total=None if sound else inputs, completed=done, rates="", counts="")
        self.advance(0, 0, "")

    def on_read(self, seconds: float) -> None:
        """Count a recording that was read. It may run in another thread than the other methods."""
        self._read, self._read_s = self._read + 1, self._read_s + seconds

    def advance(self, inputs: int, seconds: float, rates: str) -> None:
        """Show further inputs that are done, and the seconds of sound that are done in all."""
        self._done += inputs
        counts = f"{self._done:,}/{'?' if self._inputs is None else f'{self._inputs:,}'}"
        if not self._sound:
            self._bar.update(self._task, completed=self._done, counts=counts, rates=rates)
            return
        total = self._seconds
        files = "" if self._inputs == 1 else f", {counts} files"
        known = "?" if total is None else f"{total:,.0f}"
        text = f"{seconds:,.0f}/{known} s of sound{files}"
        self._bar.update(self._task, completed=seconds, total=total, counts=text, rates=rates)

    @property
    def _seconds(self) -> float | None:
        """Seconds of all recordings; None if unknown."""
        if self._to_read is None or not self._read_s:
            return None
        return self._read_s * max(1.0, self._to_read / self._read)


def progress_bar(hidden: bool) -> Progress:
    """Return a progress bar on standard error; it is hidden if that is not a terminal."""
    errors = console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TextColumn("{task.fields[rates]}"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=hidden or not errors.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def progress_of(hidden: bool, inputs: int | None, done: int = 0, *, sound: bool = False) -> Iterator[RunProgress]:
    """Show the progress of a run while the context lasts. ``hidden`` shows nothing."""
    with progress_bar(hidden) as bar:
        yield RunProgress(bar, inputs, done, sound=sound)
