"""The report of `gpu_check.py`: outcomes of the sections, as JSON, as Markdown, and as a part of docs/hardware.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tools.gpu._results import nothing_found, read_results, write_whole

__all__ = ["Section", "markdown", "read_sections", "write_report", "write_section"]


@dataclass(frozen=True)
class Section:
    """``outcome``: passed, failed, "timed out", skipped or stopped; ``reason``: why it did not pass.
    ``started``: in UTC."""

    name: str
    command: str
    started: str
    outcome: str
    reason: str
    seconds: float

    def ended(self, outcome: str, reason: str, seconds: float) -> Section:
        return replace(self, outcome=outcome, reason=reason, seconds=round(seconds, 1))


def write_section(results: Path, section: Section) -> None:
    write_whole(results / f"{section.name}.section.json", json.dumps(asdict(section), indent=1))


def read_sections(results: Path, names: Iterable[str]) -> dict[str, Section]:
    """Sections that ran, in the order of ``names``; the outcome of a broken file is "unreadable"."""
    paths = {name: results / f"{name}.section.json" for name in names}
    return {name: _read_section(name, path) for name, path in paths.items() if path.exists()}


def _read_section(name: str, path: Path) -> Section:
    try:
        section = Section(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError):
        section = None
    if section is None or any(type(value) is not _KINDS[key] for key, value in asdict(section).items()):
        return Section(name, "", "", "unreadable", f"{path.name} is not as this tool writes it; run it again", 0.0)
    return section


_KINDS = {"name": str, "command": str, "started": str, "outcome": str, "reason": str, "seconds": float}


def write_report(results: Path, names: Iterable[str], hardware: Path | None) -> None:
    """Gather every section that was run into gpu_check.json and gpu_check.md; and, if a GPU is named, into
    ``hardware``."""
    sections = read_sections(results, names)
    found = {name: {**asdict(section), **_found(results / f"{name}.json")} for name, section in sections.items()}
    write_whole(results / "gpu_check.json", json.dumps(found, indent=1) + "\n")
    text = markdown(found)
    write_whole(results / "gpu_check.md", text)
    if hardware is not None and "gpu" in found.get("machine", {}).get("figures", {}):
        write_whole(hardware, with_section(hardware.read_text(encoding="utf-8"), text))


def _found(path: Path) -> dict[str, Any]:
    try:
        return read_results(path)
    except ValueError as error:
        return {**nothing_found(), "notes": [str(error)]}


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A section of docs/hardware.md: what ran, then every table."""
    machine = found.get("machine", {}).get("figures", {})
    date = min((section["started"][:10] for section in found.values() if section["started"]), default="")
    lines = [f"## {_one_line(str(machine.get('gpu', 'a machine without a GPU')))} ({date})", ""]
    said = [f"{name} {value}" for name, value in machine.items() if name != "gpu" and isinstance(value, str)]
    lines += [_one_line(", ".join(said)) + ".", ""] if said else []
    rows = [
        (name, section["outcome"], section["reason"] or "", f"{section['seconds']:.0f}", f"`{section['command']}`")
        for name, section in found.items()
    ]
    lines += _table(("section", "outcome", "why", "seconds", "command"), rows)
    for section in found.values():
        for table in section.get("tables", ()):
            lines += ["", f"### {table['title']}", "", *_table(table["columns"], table["rows"])]
        if section.get("notes"):
            lines += ["", *(f"- {section['name']}: {_one_line(note)}" for note in section["notes"])]
    return "\n".join(lines) + "\n"


def with_section(text: str, section: str) -> str:
    """A document with this section in place of the one of the same heading, else at its end."""
    heading = section.partition("\n")[0]
    parts = text.split("\n## ")
    kept = [part for part in parts if f"## {part.partition(chr(10))[0]}" != heading]
    return "\n## ".join(part.rstrip("\n") + "\n" for part in [*kept, section.removeprefix("## ")])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(_one_line(cell.replace('|', '/')) for cell in cells)} |"

    return [line(columns), f"|{'---|' * len(columns)}", *map(line, rows)]


def _one_line(text: str) -> str:
    return " ".join(text.split())
