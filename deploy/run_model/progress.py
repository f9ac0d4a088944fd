"""The progress bar of a run."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tightbeam.deploy.console import console

__all__ = ["progress_bar"]


def progress_bar(hidden: bool) -> Progress:
    """Return a progress bar on standard error; it is hidden if that is not a terminal."""
    errors = console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rates]}"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=hidden or not errors.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )
