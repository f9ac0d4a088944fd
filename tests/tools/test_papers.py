"""The papers' tables by our formulas (`python -m tools.papers`), cell by cell, with the few cells that differ."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tools import papers

DIFFERENT = {
    "fastseq": [],
    "el": [
        "source cache of el, batch 320, 256 tokens",  # 0.15625, which the paper cuts
        "baseline / el with the states in two layouts",
        "GB that a layer of el moves, batch 32",
    ],
    "shazeer": [],
    "slim": [
        f"Whisper {model}: {row}"
        for model in papers.WHISPER
        for row in papers.PRINTED
        if row.endswith(("E-cache kept", "E-cache read"))
    ],
}
"""Paper -> the cells that are not as printed. All others are."""


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_the_papers_figures_are_those_of_our_formulas(paper: str) -> None:
    cells = list(papers.PAPERS[paper]())
    assert [cell.name for cell in cells if not cell.agrees] == DIFFERENT[paper]
    names = [cell.name for cell in cells]
    assert names and len(set(names)) == len(names)


def test_el_caches_exactly_one_ninety_sixth() -> None:
    ours = {cell.name: cell.ours for cell in papers.el()}
    assert (ours["baseline / el"], ours["dedup / el, 2 L"]) == (96, 24)


def test_whispers_figures_to_the_last_number() -> None:
    """The tiny model by hand: 4 layers of width 384."""
    tiny = papers.WHISPER["tiny"]
    baseline = 384 * 51865 + 4 * (6 * 384**2 + 2 * 384 * 1536)
    for variant, more in (("dedup", 0), ("kcache", 4 * 384**2), ("slim", 2 * 4 * 384**2)):
        assert papers.whisper_reads(tiny, variant, 1, 0, 0) == baseline + more
    assert papers.whisper_reads(tiny, "dedup", 1) == baseline + 2 * (1500 + 448) * 384 * 4


def test_shazeers_expressions_bound_the_counts() -> None:
    for sizes in (papers.MULTI_HEAD, papers.MULTI_QUERY):
        for b in (1, 16, 1024):
            for n in (1, 100, sizes.D):
                expression, counted = papers.shazeer_ratios(sizes, b, n)
                assert expression / 5 <= counted <= expression
    many, one = (papers.shazeer_ratios(sizes, 10**6, 1024)[1] for sizes in (papers.MULTI_HEAD, papers.MULTI_QUERY))
    assert many > 5 * one


@pytest.mark.parametrize(
    ("printed", "ours", "agrees"),
    [
        ("1.5 GB", 1.5, True),
        ("0.13 GB", 0.125, True),
        ("0.15 GB", 0.15625, False),
        ("96x", 48.0, False),
        ("7", 7.6, False),
    ],
)
def test_verdicts(printed: str, ours: float, agrees: bool) -> None:
    assert papers.Cell("", printed, ours).agrees == agrees


def test_the_command_prints_the_papers_that_are_named() -> None:
    app = papers.typer.Typer()
    app.command()(papers.main)
    assert "baseline / el: 96x, ours 96\n" in CliRunner().invoke(app, ["el"]).output
    assert "3.5x, ours 3.51\n" in CliRunner().invoke(app, ["fastseq"]).output
    assert "the paper 'xl' is unknown" in CliRunner().invoke(app, ["xl"]).output
