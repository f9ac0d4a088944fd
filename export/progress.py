"""The steps of an export, by name, and their display while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tightbeam.deploy.console import console as error_console

__all__ = ["STEPS", "show_steps"]

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
SIGN_OF_LIFE_S = 30.0
"""Seconds of a step after which a line says that it still runs, if there is no terminal."""


@contextmanager
def show_steps() -> Iterator[Callable[[str], None]]:
    """Display each step as it begins: on a terminal as a bar, otherwise as a line, and one more each half minute."""
    console = error_console()
    with (_show_bar if console.is_terminal else _show_lines)(console) as show:
        yield show


@contextmanager
def _show_bar(console: Console) -> Iterator[Callable[[str], None]]:
    columns = (TextColumn("{task.description:22}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=len(STEPS))
        yield lambda step: progress.update(task, description=step, completed=STEPS.index(step))
        progress.update(task, description="done", completed=len(STEPS))


@contextmanager
def _show_lines(console: Console) -> Iterator[Callable[[str], None]]:
    ended, running = threading.Event(), [("", 0.0)]

    def show(step: str) -> None:
        running[0] = step, time.monotonic()
        console.print(step)

    def show_life() -> None:
        while not ended.wait(SIGN_OF_LIFE_S - (time.monotonic() - running[0][1]) % SIGN_OF_LIFE_S):
            step, since = running[0]
            if step and (seconds := time.monotonic() - since) >= SIGN_OF_LIFE_S:
                console.print(f"still {step}, after {seconds:.0f} s")

    thread = threading.Thread(target=show_life, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        ended.set()
        thread.join()
