"""A number that a paper prints next to the one that our code computes, and how the two compare."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

__all__ = ["Figure", "PaperTable", "quotient_can_be", "rich_table"]

NUMBER = re.compile(r"\d[\d,]*(\.\d+)?")
SLACK = 1e-9
"""Tolerance of a binary number for a decimal one."""


@dataclass(frozen=True)
class Figure:
    """One cell of a table. ``row``, ``column``: its place. ``printed``: as in the paper, with its unit, such as ``"1.5
    GB"``. ``ours``: in that unit.
    """

    row: str
    column: str
    printed: str
    ours: float

    @property
    def value(self) -> float:
        """The printed number. Raises ValueError where ``printed`` holds none."""
        return float(self._number().replace(",", ""))

    @property
    def decimals(self) -> int:
        """Digits that are printed after the point."""
        return len(self._number().partition(".")[2])

    @property
    def verdict(self) -> str:
        """``exact``: equal. ``rounds to it``: ours gives the printed number when rounded. ``cut``: when further digits
        are dropped. ``differs``: neither."""
        last = 10.0**-self.decimals
        if math.isclose(self.ours, self.value, rel_tol=SLACK):
            return "exact"
        if abs(self.ours - self.value) <= last / 2 + SLACK:
            return "rounds to it"
        if 0 <= self.ours - self.value < last:
            return "cut"
        return "differs"

    @property
    def agrees(self) -> bool:
        return self.verdict in ("exact", "rounds to it")

    def _number(self) -> str:
        match = NUMBER.search(self.printed)
        if match is None:
            raise ValueError(f"{self.printed!r} holds no number; write it as the paper prints it, such as '1.5 GB'")
        return match.group()

    def __str__(self) -> str:
        """Both numbers; ours with one digit more than the paper prints, and as many as it takes to see it."""
        digits = self.decimals + 1
        if self.ours and self.verdict != "exact":
            digits = max(digits, 1 - math.floor(math.log10(abs(self.ours))))
        ours = f"{self.ours:,.{digits}f}".rstrip("0").rstrip(".")
        return f"{self.printed} / {ours}{'' if self.agrees else ' (!)'}"


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper. ``notes``: remarks, a sentence each."""

    title: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    @property
    def different(self) -> tuple[Figure, ...]:
        """The cells that are not as printed."""
        return tuple(figure for figure in self.figures if not figure.agrees)


def rich_table(paper: PaperTable) -> Table:
    """The paper's rows and columns, each cell as ``paper's / ours``, and a verdict for each row; no title."""
    rows = list(dict.fromkeys(figure.row for figure in paper.figures))
    columns = list(dict.fromkeys(figure.column for figure in paper.figures))
    cells = {(figure.row, figure.column): figure for figure in paper.figures}
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for row in rows:
        found = [cells.get((row, column)) for column in columns]
        table.add_row(row, *(str(figure) if figure else "" for figure in found), _verdict_of([f for f in found if f]))
    return table


def _verdict_of(figures: Sequence[Figure]) -> str:
    off = [figure for figure in figures if not figure.agrees]
    if off:
        verdicts = {figure.verdict for figure in off}
        if len(off) == len(figures) and len(verdicts) == 1:
            return verdicts.pop()
        return "; ".join(f"{figure.column}: {figure.verdict}" for figure in off)
    return "exact" if all(figure.verdict == "exact" for figure in figures) else "rounds to it"


def quotient_can_be(printed: str, above: str, below: str) -> bool:
    """True where two printed numbers, each rounded, can have the printed quotient, rounded or cut."""
    quotient, numerator, denominator = (Figure("", "", text, 0.0) for text in (printed, above, below))

    def half(figure: Figure) -> float:
        return 10.0**-figure.decimals / 2

    lowest = (numerator.value - half(numerator)) / (denominator.value + half(denominator))
    highest = (numerator.value + half(numerator)) / (denominator.value - half(denominator))
    return lowest - 2 * half(quotient) <= quotient.value <= highest + half(quotient)
