"""The steps of an export, by name, and their display while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tightbeam.deploy.console import console as error_console

__all__ = ["STEPS", "show_steps"]

STEPS = (
    "loading",
    "generating with torch",
    "tracing",
    "rewriting",
    "measuring errors",
    "writing",
    "comparing with torch",
)


@contextmanager
def show_steps() -> Iterator[Callable[[str], None]]:
    """Display of each step as it begins: a bar on a terminal, a line a step elsewhere."""
    console = error_console()
    columns = (TextColumn("{task.description:22}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(STEPS))

        def show(step: str) -> None:
            progress.update(task, description=step, completed=STEPS.index(step))
            if not console.is_terminal:
                console.print(step)

        yield show
        progress.update(task, description="done", completed=len(STEPS))
