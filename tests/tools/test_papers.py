"""The papers' tables by our formulas (`python -m tools.papers`), cell by cell, with the few cells that differ."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tightbeam.graph_passes import Sizes
from tools.papers import attention_times, el, fastseq, figures, search_times, shazeer, slim, step_times

ROOT = Path(__file__).resolve().parents[2]
TABLES = {
    el: ("el_memory", "el_saving", "el_movement", "el_ratios"),
    fastseq: ("fastseq_cache", "fastseq_ratios"),
    shazeer: ("shazeer_memory", "shazeer_widths"),
    slim: (
        *("slim_whisper", "slim_whisper_states_read", "slim_cache_sizes", "slim_long_context"),
        *("slim_not_square", "slim_intensity", "slim_chips"),
    ),
}
DIFFERENT = {
    "el_memory": {"batch 320, 256 tokens": "cut"},
    "el_saving": {"two layouts, as in the paper's code": "differs"},
    "el_movement": {"EL, GB moved": "differs"},
    "fastseq_ratios": {"T5": "differs", "GPT2": "cut"},
    "slim_long_context": {"KV-cache, GB": "cut", "K-cache, GB": "differs"},
    "slim_whisper_states_read": {
        "Option 2 savings, E-cache kept": "differs",
        "Option 2 speedup, batch 1, E-cache read": "differs",
        "Option 2 speedup, batch 64, E-cache read": "differs",
    },
}
"""Table -> the rows that are not as printed, and how. All other cells of all tables are."""


@pytest.mark.parametrize(("module", "table"), [(module, table) for module, names in TABLES.items() for table in names])
def test_the_papers_figures_are_those_of_our_formulas(module: ModuleType, table: str) -> None:
    made = getattr(module, table)()
    assert made.figures
    found = {figure.row: figure.verdict for figure in made.different}
    assert found == DIFFERENT.get(table, {})
    figures.rich_table(made)


def test_el_caches_exactly_one_ninety_sixth() -> None:
    one, two, layer = (figure.ours for figure in el.el_saving().figures)
    assert (one, two, layer) == (96, 48, 24)
    by_cell = {(f.row, f.column): f.ours for f in el.el_memory().figures}
    for (row, column), gib in by_cell.items():
        if column == "multi-head":
            assert gib == 96 * by_cell[row, "EL"]


def test_whispers_figures_to_the_last_number() -> None:
    """The tiny model by hand: 4 layers of width 384."""
    tiny = slim.WHISPER["tiny"]
    baseline = 384 * 51865 + 4 * (6 * 384**2 + 2 * 384 * 1536)
    parameters = slim.parameters
    assert parameters(tiny, "dedup") == baseline
    assert parameters(tiny, "kcache") == baseline + 4 * 384**2
    assert parameters(tiny, "slim") == baseline + 2 * 4 * 384**2
    reads = slim.reads
    assert reads(tiny, "dedup", 1, states_on_chip=True) == baseline + 2 * (1500 + 448) * 384 * 4
    on_chip, read = (reads(tiny, "slim", 1, states_on_chip=where) for where in (True, False))
    assert read - on_chip == 4 * 1500 * 384


def test_shazeers_expressions_bound_the_counts() -> None:
    for sizes in (shazeer.MULTI_HEAD, shazeer.MULTI_QUERY):
        for b in (1, 16, 1024):
            for n in (1, 100, sizes.D):
                expression, counted = shazeer.ratios(sizes, b, n)
                assert expression / 5 <= counted <= expression
    many, one = (shazeer.ratios(sizes, 10**6, 1024)[1] for sizes in (shazeer.MULTI_HEAD, shazeer.MULTI_QUERY))
    assert many > 5 * one


@pytest.mark.parametrize(
    ("printed", "ours", "verdict"),
    [
        ("1.5 GB", 1.5, "exact"),
        ("0.13 GB", 0.125, "rounds to it"),
        ("0.15 GB", 0.15625, "cut"),
        ("0.15 GB", 0.1401, "differs"),
        ("96x", 48.0, "differs"),
        ("1,024", 1024.0, "exact"),
        ("7", 7.6, "cut"),
    ],
)
def test_verdicts(printed: str, ours: float, verdict: str) -> None:
    assert figures.Figure("", "", printed, ours).verdict == verdict
    with pytest.raises(ValueError, match="holds no number"):
        _ = figures.Figure("", "", "n/a", 1.0).value


def test_quotients_of_rounded_cells() -> None:
    quotient_can_be = figures.quotient_can_be
    assert quotient_can_be("7.7x", "18.4", "2.4")
    assert quotient_can_be("5.5x", "16.7", "3.0")
    assert not quotient_can_be("4.3x", "31.3", "8.7")


@pytest.mark.parametrize("beams", [1, 3])
def test_all_forms_of_attention_agree(beams: int) -> None:
    """Forms are compared with the definition before they are timed; a wrong one is refused by name."""
    times = attention_times
    sizes = Sizes(D=40, H=5, G=5, K=8, V=8, L=1, vocabulary=1, source_vocabulary=1, max_source=1, max_target=1)
    measured = times.time_attention(sizes, 2, beams, 19, 1)
    assert measured.ms.keys() == times.FORMS.keys()
    assert all(ms > 0 for ms in measured.ms.values())
    right = times.FORMS["EL"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(times, "FORMS", {"EL": lambda source: right(replace(source, W_V=1.01 * source.W_V))})
        with pytest.raises(SystemExit, match=r"'EL' differs from the definition by 1\.0e-02"):
            times.time_attention(sizes, 2, beams, 19, 1)


def test_fits_find_the_polynomial() -> None:
    fit = step_times.fit
    lengths = [1, 5, 9, 30]
    line = fit(lengths, [3 + 2 * T for T in lengths], 1)
    assert line.coefficients == pytest.approx((3, 2))
    assert line.r_squared == pytest.approx(1)
    assert line(10) == pytest.approx(23)
    squares = [7 + T * T for T in lengths]
    assert fit(lengths, squares, 2).r_squared == pytest.approx(1)
    assert fit(lengths, squares, 1).r_squared < 0.99


def test_an_impossible_ablation_is_refused() -> None:
    time_ablation = step_times.time_ablation
    with pytest.raises(SystemExit, match="is no checkpoint folder"):
        time_ablation(ROOT, 1, 8, 8, 1, None)
    with pytest.raises(SystemExit, match="exceed the 256 positions"):
        time_ablation(ROOT / "export" / "demo", 1, 300, 8, 1, None)
    with pytest.raises(SystemExit, match="is no checkpoint folder"):
        search_times.time_searches(ROOT, 1, 8, 8, 1, None)


@pytest.mark.slow
def test_growth_and_ablation_run() -> None:
    """Tokens and logits are compared before anything is timed, so that a wrong cache is an error."""
    times = step_times
    growth = times.time_growth("dedup", 2, 6, [8, 40], 1, None)
    assert len(growth.cached_ms) == 40
    assert growth.uncached_ms.keys() == {8, 40}
    middles, medians = growth.blocks()
    assert middles == [8.5, 24.5]
    assert len(medians) == 2
    ablation = times.time_ablation(ROOT / "export" / "demo", 1, 24, 8, 1, None)
    assert len(ablation.samples_per_second) == 5
    searches = search_times.time_searches(ROOT / "export" / "demo", 1, 24, 8, 1, None)
    assert [list(speeds) for speeds in searches.values()] == [["baseline", "dedup", "el"]] * 3


@pytest.mark.slow
def test_the_command_prints_every_table() -> None:
    command = [sys.executable, "-m", "tools.papers", "all"]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    for words in ("Table 4", "96x / 96", "3.5x / 3.51", "9088 / 9,088", "25.8B / 25.77", "5.8x / 5.84", "33 / 33"):
        assert words in done.stdout
