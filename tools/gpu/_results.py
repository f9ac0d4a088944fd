"""Results of the section `generate` of `gpu_check.py`, which write each finding at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.gpu._process import read, rows

__all__ = ["Results", "figures_of"]

FIGURE = "figure"


class Results:
    """Figures by name, tables and notes of one section, in its file of findings."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def figure(self, name: str, value: Any) -> None:
        """A figure that a later call reads (``figures_of``)."""
        self._write([FIGURE, {name: value}])

    def row(self, title: str, columns: Sequence[str], cells: Sequence[object]) -> None:
        """A row more of the table ``title``."""
        self._write([title, dict(zip(columns, map(str, cells), strict=True))])

    def note(self, text: str) -> None:
        """A sentence for the reader."""
        self._write(text)

    def _write(self, found: object) -> None:
        with self._path.open("a", encoding="utf-8") as lines:
            print(json.dumps(found), file=lines)


def figures_of(path: Path) -> Mapping[str, Any]:
    """The newest value of each figure."""
    return {name: value for row in rows(read(path), FIGURE) for name, value in row.items()}
