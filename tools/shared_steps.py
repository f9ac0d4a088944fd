"""Exports of one checkpoint that share the slow steps of their pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tightbeam.export import pipeline

__all__ = ["shared_steps"]


@contextmanager
def shared_steps(*steps: str) -> Iterator[None]:
    """Run each of some steps once for all exports in this context, which are of one checkpoint.

    Parameters
    ----------
    *steps : str
        Names of functions that ``tightbeam.export.pipeline`` calls, such as ``trace``.
    """
    made: dict[str, Any] = {}

    def once(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if name not in made:
                made[name] = step(*given, **named)
            return made[name].copy() if name == "trace" else made[name]  # the passes change a trace

        return run

    shared: dict[str, Any] = {name: once(name, getattr(pipeline, name)) for name in steps}
    with patch.multiple(pipeline, **shared):
        yield
