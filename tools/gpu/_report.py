"""The report of `gpu_check.py`: what the sections found as Markdown, and as a part of docs/hardware.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.gpu._process import read, rows

__all__ = ["MACHINE", "RIGHT", "STATE", "write_report"]

RIGHT = "right"
"""Column that says whether a check was right."""
STATE, MACHINE = "state", "machine"
"""Titles of the rows that the head of the report is made of: the outcome of a section, and what the machine has."""


def write_report(results: Path, names: Iterable[str], hardware: Path | None) -> None:
    """Write gpu_check.md and, if a GPU is named, into ``hardware``, whose section of the same GPU and day is replaced.

    Parameters
    ----------
    results : Path
        Folder of the sections' files, and of gpu_check.md.
    names : iterable of str
        The sections, in order; those without a file have not run.
    hardware : Path or None
        docs/hardware.md; None in a rehearsal.
    """
    found = {name: read(results / f"{name}.jsonl") for name in names}
    found = {name: each for name, each in found.items() if each}
    machine = _merged(rows(found.get("machine", ()), MACHINE))
    text = markdown(found, machine)
    (results / "gpu_check.md").write_text(text, encoding="utf-8")
    if hardware is not None and "GPU" in machine:
        heading, before = text.partition("\n")[0], hardware.read_text(encoding="utf-8").rstrip("\n")
        kept = [part for part in before.split("\n## ") if f"## {part.partition(chr(10))[0]}" != heading]
        hardware.write_text("\n## ".join(part.rstrip("\n") + "\n" for part in [*kept, text[3:]]), encoding="utf-8")


def markdown(found: Mapping[str, list[Any]], machine: Mapping[str, str]) -> str:
    """The report: what ran, then every table, then the notes."""
    states = [{"section": name, **_merged(rows(each, STATE))} for name, each in found.items()]
    started = min((state.pop("started", "")[:10] for state in states), default="")
    lines = [f"## {machine.get('GPU', 'A machine without a GPU')} ({started})", ""]
    said = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "GPU")
    lines += [f"{said}.", ""] if said else []
    lines += _table(states)
    for name, each in found.items():
        titles = dict.fromkeys(one[0] for one in each if isinstance(one, list))
        for title in (title for title in titles if title not in (STATE, MACHINE)):
            lines += ["", f"### {title}", "", *_section(rows(each, title))]
        notes = [f"- {name}: {_one_line(note)}" for note in each if isinstance(note, str)]
        lines += ["", *notes] if notes else []
    return "\n".join(lines) + "\n"


def _section(of: list[dict[str, Any]]) -> list[str]:
    """A table; of checks that say what was right only their number, and those that were not."""
    wrong = [row for row in of if not row.get(RIGHT, False)]
    if len(wrong) == len(of):
        return _table(of)
    return [f"{len(of) - len(wrong)} of {len(of)} are right.", *(["", *_table(wrong)] if wrong else [])]


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _table(of: list[dict[str, Any]]) -> list[str]:
    columns = [name for name, value in _merged(of).items() if not isinstance(value, list)]
    lines = [[*columns], *([_cell(row.get(name)) for name in columns] for row in of)]
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return [text[0], f"|{'---|' * len(columns)}", *text[1:]]


def _cell(value: Any) -> str:
    """Numbers with four digits; raw figures belong in lists."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
    return _one_line(str(value)).replace("|", "/")


def _one_line(text: str) -> str:
    return " ".join(text.split())
