"""The figures of the five papers next to ours: one command, a sub-command for each paper's tables.

    python tools/papers.py el-memory
    python tools/papers.py all

Sizes and ratios are computed by the code that the exporter uses (cache_bytes, plan_bytes, cost) from the published
sizes of each model, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import typer
from rich.console import Console
from rich.table import Table

from paper_el import el_memory, el_saving
from paper_fastseq import fastseq_cache, fastseq_ratios
from paper_figure import PaperTable, rich_table
from paper_shazeer import shazeer_memory, shazeer_ratios, shazeer_widths
from paper_slim import (
    slim_cache_sizes,
    slim_chips,
    slim_intensity,
    slim_long_context,
    slim_not_square,
    slim_whisper,
    slim_whisper_states_read,
)

TABLES: dict[str, tuple[Callable[[], PaperTable | Table], ...]] = {
    "el-memory": (el_memory, el_saving),
    "fastseq-cache": (fastseq_cache, fastseq_ratios),
    "shazeer": (shazeer_memory, shazeer_ratios, shazeer_widths),
    "slim-cache": (slim_cache_sizes, slim_long_context, slim_not_square),
    "slim-whisper": (slim_whisper, slim_whisper_states_read),
    "slim-intensity": (slim_intensity, slim_chips),
}
"""Sub-command -> the tables that it prints."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
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
    """All of the above."""
    for tables in TABLES.values():
        print_tables(tables)


if __name__ == "__main__":
    app()
