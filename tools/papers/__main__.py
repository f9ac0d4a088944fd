"""The figures of the five papers next to ours: one command, a sub-command for each paper's tables.

    python -m tools.papers el-memory
    python -m tools.papers all
    python -m tools.papers el-figure-4

Sizes and ratios are computed by the code that the exporter uses (cache_bytes, plan_bytes, cost) from the published
sizes of each model, in seconds. The last four sub-commands measure on this machine, for minutes: what they time is
checked first, forms are timed in turn, and medians are printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tightbeam.export import ExportError
from tools.papers.attention_times import FORMS, AttentionTimes, time_attention
from tools.papers.el import BART_LARGE, TABLE_2, el_memory, el_movement, el_ratios, el_saving
from tools.papers.fastseq import fastseq_cache, fastseq_ratios
from tools.papers.figures import PaperTable, rich_table
from tools.papers.search_times import VARIANTS, time_searches
from tools.papers.shazeer import shazeer_memory, shazeer_ratios, shazeer_widths
from tools.papers.slim import (
    slim_cache_sizes,
    slim_chips,
    slim_intensity,
    slim_long_context,
    slim_not_square,
    slim_whisper,
    slim_whisper_states_read,
)
from tools.papers.step_times import fit, time_ablation, time_growth

TABLES: dict[str, tuple[Callable[[], PaperTable | Table], ...]] = {
    "el-memory": (el_memory, el_saving, el_movement, el_ratios),
    "fastseq-cache": (fastseq_cache, fastseq_ratios),
    "shazeer": (shazeer_memory, shazeer_ratios, shazeer_widths),
    "slim-cache": (slim_cache_sizes, slim_long_context, slim_not_square),
    "slim-whisper": (slim_whisper, slim_whisper_states_read),
    "slim-intensity": (slim_intensity, slim_chips),
}
"""Sub-command -> the tables that it prints."""

ROOT = Path(__file__).resolve().parents[2]
SOURCES, BEAMS = [64, 128, 256, 512, 1024], [1, 2, 4, 8]
"""Default sizes of EL-attention's Figure 4."""
PREFIXES = [64, 128, 256, 384, 512, 768, 1000]

HELP = """The figures of the papers next to ours: a sub-command for each paper's tables, computed in seconds by the
exporter's formulas; the last four measure on this machine, for minutes."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=HELP)
console = Console(highlight=False)


def print_tables(tables: tuple[Callable[[], PaperTable | Table], ...]) -> None:
    """Compute and print, with the notes below."""
    for make in tables:
        made = make()
        if isinstance(made, PaperTable):
            console.print(f"{made.title} (paper / ours)", soft_wrap=True)
            console.print(rich_table(made))
            for note in made.notes:
                console.print(f"  {note}", soft_wrap=True)
            console.print()
        else:
            console.print(made)


def _command(name: str, tables: tuple[Callable[[], PaperTable | Table], ...]) -> None:
    first_lines = [(table.__doc__ or "").partition("\n")[0] for table in tables]

    @app.command(name, help=" ".join(first_lines))
    def run() -> None:
        print_tables(tables)


for _name, _tables in TABLES.items():
    _command(_name, _tables)


@app.command("all")
def every_table() -> None:
    """All computed tables."""
    for tables in TABLES.values():
        print_tables(tables)


Checkpoint = Annotated[Path, typer.Option(help="Checkpoint folder.")]
Batch = Annotated[int, typer.Option(min=1, help="Samples in a batch.")]
Source = Annotated[int, typer.Option(min=1, help="Source length in tokens.")]
NewTokens = Annotated[int, typer.Option(min=1, help="Tokens to generate.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of measurement; medians are printed.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; all cores by default.")]


@app.command()
def el_figure_4(
    sources: Annotated[list[int], typer.Option(min=1, help="Source lengths to time with 4 beams.")] = SOURCES,
    beams: Annotated[list[int], typer.Option(min=1, help="Numbers of beams to time at the longest source.")] = BEAMS,
    batch: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 1,
    rounds: Rounds = 9,
    threads: Threads = None,
) -> None:
    """Measure EL-attention's Figure 4: attention time against source length and beams (BART-large's attention)."""
    by_source = [time_attention(BART_LARGE, batch, 4, N, rounds, threads) for N in sorted(sources)]
    by_beams = [time_attention(BART_LARGE, batch, M, max(sources), rounds, threads) for M in sorted(beams)]
    _print_attention("EL-attention, Figure 4 left: 4 beams", by_source)
    _print_attention("EL-attention, Figure 4 right: the longest source", by_beams)


def _print_attention(title: str, measured: list[AttentionTimes]) -> None:
    table = _table(
        f"{title}; ms of a sample in one layer, float32 (times those of `shared`)", "beams", "source", *FORMS
    )
    for row in measured:
        cells = [f"{row.ms[name]:.2f} ({row.ms[name] / row.ms['shared']:.2f})" for name in FORMS]
        table.add_row(str(row.beams), f"{row.source:,}", *cells)
    console.print(table)


@app.command()
def el_table_2(
    checkpoint: Checkpoint = ROOT / "export/demo",
    batch: Batch = 8,
    source: Source = 200,
    new_tokens: NewTokens = 50,
    rounds: Rounds = 5,
    threads: Threads = None,
) -> None:
    """Measure EL-attention's Table 2 in relative form: beam, diverse beam and greedy search, by what is cached."""
    measured = time_searches(checkpoint, batch, source, new_tokens, rounds, threads)
    table = _table(
        f"EL-attention, Table 2: samples a second (times those of `baseline`), source of {source}, output of "
        f"{new_tokens} tokens",
        *("", *VARIANTS, "the paper, V100"),
    )
    for search, speeds in measured.items():
        cells = [f"{speeds[name]:.1f} ({speeds[name] / speeds['baseline']:.2f}x)" for name in VARIANTS]
        printed = TABLE_2[search, "BART, CNN/DailyMail"]
        table.add_row(search, *cells, f"{printed[2]} ({printed[5]} float32)")
    console.print(table)


@app.command()
def fastseq_ablation(
    checkpoint: Checkpoint = ROOT / "export/demo",
    batch: Batch = 8,
    source: Source = 200,
    new_tokens: NewTokens = 50,
    rounds: Rounds = 5,
    threads: Threads = None,
) -> None:
    """Measure FastSeq's Table 2 in relative form: no cache, conventional cache, deduplicated cache, larger batch."""
    measured = time_ablation(checkpoint, batch, source, new_tokens, rounds, threads)
    table = _table(
        f"FastSeq, Table 2: whole generations, 4 beams, source of {source}, output of {new_tokens} tokens",
        *("", "samples a second", "relative to `baseline`"),
    )
    one = measured.samples_per_second["conventional cache (baseline)"]
    for name, speed in measured.samples_per_second.items():
        table.add_row(name, f"{speed:.2f}", f"{speed / one:.2f}x")
    console.print(table)
    console.print(
        "  The paper on a V100, step by step: no cache 0.75x (1.8 / 2.4) of a conventional cache; "
        "deduplicated 1.4x (8.1 / 5.6); with the larger batch 3.3x (18.4 / 5.6).",
        soft_wrap=True,
    )


@app.command()
def growth(
    lengths: Annotated[list[int], typer.Option(min=32, help="Prefix lengths to time without a cache.")] = PREFIXES,
    variant: Annotated[str, typer.Option(help="Variant whose cached steps are timed.")] = "dedup",
    batch: Annotated[int, typer.Option(min=1, help="Rows in a batch.")] = 4,
    source: Annotated[int, typer.Option(min=1, help="Source length in tokens.")] = 64,
    rounds: Rounds = 5,
    threads: Threads = None,
) -> None:
    """Measure Lei Mao's orders: a step with a cache against T, and without one (random model, 4 layers, width 256)."""
    if len(set(lengths)) < 4:
        raise typer.BadParameter(f"lengths {lengths} are too few for a fit; give four different ones or more")
    measured = time_growth(variant, batch, source, sorted(set(lengths)), rounds, threads)
    middles, medians = measured.blocks()
    line = fit(middles, medians, 1)
    uncached_lengths, uncached = list(measured.uncached_ms), list(measured.uncached_ms.values())
    straight, curve = fit(uncached_lengths, uncached, 1), fit(uncached_lengths, uncached, 2)
    table = _table("Lei Mao: ms of a step after T tokens", "T", f"with a cache ({variant})", "without (torch)")
    for T, ms in measured.uncached_ms.items():
        nearest = min(range(len(middles)), key=lambda block: abs(middles[block] - T))
        table.add_row(f"{T:,}", f"{medians[nearest]:.2f}", f"{ms:.1f}")
    console.print(table)
    a, b = line.coefficients
    console.print(f"  with a cache:    {a:.3f} + {b:.3g} T ms, R^2 {line.r_squared:.3f} (medians of 16 steps)")
    a, b, c = curve.coefficients
    console.print(
        f"  without a cache: {a:.1f} + {b:.3g} T + {c:.3g} T^2 ms, R^2 {curve.r_squared:.4f}; "
        f"a straight line has {straight.r_squared:.4f}"
    )
    n = max(lengths)
    without = sum(max(curve(T), 0.0) for T in range(1, n + 1))
    console.print(
        f"  {n:,} tokens: {sum(measured.cached_ms) / 1e3:.2f} s of steps with a cache; without one "
        f"{without / 1e3:.1f} s by the fit",
        soft_wrap=True,
    )


def _table(title: str, *headings: str) -> Table:
    """An empty table of columns of numbers; one without a heading is of names."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    return table


if __name__ == "__main__":
    try:
        app()
    except ExportError as error:
        raise SystemExit(f"error: {error}") from None
