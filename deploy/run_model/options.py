"""The options of a run that are the same on this machine and on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RunOptions"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `run-model`.

    Attributes
    ----------
    bundle : Path
    sources : sequence of str
        Names of files, on a cluster also of folders; "-" is standard input.
    json_lines : bool
        Write results as JSON, in place of text.
    quiet : bool
        Print errors only.
    engine, device, threads
        Arguments of `Runner.load`.
    """

    bundle: Path
    sources: Sequence[str]
    json_lines: bool
    quiet: bool
    engine: str
    device: str
    threads: int | None
