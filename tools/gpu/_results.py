"""Results of a section of `gpu_check.py`, in a file that is whole after every row."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["SKIPPED", "Results", "nothing_found", "read_results", "skip", "write_whole"]

SKIPPED = 75
"""Exit code of a section that cannot run on this machine; its last line gives the reason."""


class Results:
    """Figures by name, tables and notes of one section. Every change is written at once, so that a stop half way loses
    the row that was being measured and nothing else.

    The file: ``{"figures": {name: anything}, "tables": [{"title", "columns", "rows"}], "notes": [text]}``; a cell is
    text as it shall be printed, figures have the numbers.
    """

    def __init__(self, path: Path, figures: Mapping[str, Any] | None = None) -> None:
        """Results so far. ``figures``: of an earlier run, which are in the file from the start."""
        self._path = path
        self._content = nothing_found()
        self._content["figures"] |= figures or {}
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
        write_whole(self._path, json.dumps(self._content, indent=1, allow_nan=False))


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step: a reader finds the old content or all of ``text``, wherever the write is stopped."""
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def nothing_found() -> dict[str, Any]:
    return {"figures": {}, "tables": [], "notes": []}


def read_results(path: Path) -> dict[str, Any]:
    """Read a file of results; empty if nothing was written. Raises ValueError for any other content."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return nothing_found()
    except ValueError as error:
        raise ValueError(f"{path.name} is broken: {error}") from error
    found = nothing_found() | found if isinstance(found, dict) else found
    if not _is_results(found):
        raise ValueError(f"{path.name} is not what a section of the GPU check writes")
    return {name: found[name] for name in nothing_found()}


def _is_results(found: object) -> bool:
    match found:
        case {"figures": dict(), "tables": list() as tables, "notes": list() as notes}:
            return _are_texts(notes) and all(map(_is_table, tables))
    return False


def _is_table(table: object) -> bool:
    match table:
        case {"title": str(), "columns": list() as columns, "rows": list() as rows}:
            return all(_are_texts(row) and len(row) == len(columns) for row in [columns, *rows])
    return False


def _are_texts(cells: object) -> bool:
    return isinstance(cells, list) and all(isinstance(cell, str) for cell in cells)


def skip(reason: str) -> NoReturn:
    """End a section that cannot run here."""
    print(f"skipped: {reason}", flush=True)
    raise SystemExit(SKIPPED)
