"""What a section of `gpu_check.py` has found so far, in a file that is whole after every row."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["SKIPPED", "Results", "read_results", "skip"]

SKIPPED = 75
"""Exit code of a section that this machine cannot run; its last line says why."""


class Results:
    """Figures by name, tables and notes of one section. Every change is written at once, so that a stop half way loses
    the row that was being measured and nothing else.

    The file: ``{"figures": {name: anything}, "tables": [{"title", "columns", "rows"}], "notes": [text]}``; a cell is
    text as it shall be printed, figures have the numbers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, Any] = {"figures": {}, "tables": [], "notes": []}
        self._write()

    def figure(self, name: str, value: Any) -> None:
        """``value``: whatever JSON has; NaN and infinity are refused with ValueError."""
        self._content["figures"][name] = value
        self._write()

    def row(self, title: str, columns: Sequence[str], cells: Sequence[object]) -> None:
        """A row more of the table ``title``, which begins with its first one."""
        if len(cells) != len(columns):
            raise ValueError(f"{title}: {len(cells)} cells for {len(columns)} columns")
        tables = self._content["tables"]
        table = next((table for table in tables if table["title"] == title), None)
        if table is None:
            table = {"title": title, "columns": list(columns), "rows": []}
            tables.append(table)
        table["rows"].append([str(cell) for cell in cells])
        self._write()

    def note(self, text: str) -> None:
        """A sentence for the reader: what did not fit, what missed its prediction and why."""
        self._content["notes"].append(text)
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._content, indent=1, allow_nan=False)
        written = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        written.write_text(text, encoding="utf-8")
        written.replace(self._path)


def read_results(path: Path) -> dict[str, Any]:
    """What stands in such a file; empty where nothing was written."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"figures": {}, "tables": [], "notes": []}
    return found


def skip(reason: str) -> NoReturn:
    """End a section that cannot run here."""
    print(f"skipped: {reason}", flush=True)
    raise SystemExit(SKIPPED)
