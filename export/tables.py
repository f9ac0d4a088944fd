"""Tables of the export command: cache bytes by variant, results of the passes, errors of the guard."""

from __future__ import annotations

from rich import box
from rich.table import Table

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.export.checkpoint.generation import longest_output
from tightbeam.export.writing.entries import plan_of, sizes_of
from tightbeam.graph_passes import PRESETS, RunSize, plan_bytes, presets_of, same_for_all
from tightbeam.graph_passes.precision.lower_precision import itemsize

BEAMS = RunSize.M
BATCHES = (1, 32)


def memory_table(bundle: Bundle) -> Table:
    """Bytes of the source and the generated cache by variant, for batch 1 and 32, 4 beams and the model's full lengths.

    The bundle's own variant is in bold, in an extra row where its layers match no preset.
    """
    manifest = bundle.manifest
    sizes = sizes_of(manifest)
    T = longest_output(manifest.generation, sizes.max_target)
    plans = {name: same_for_all(preset, sizes.L, "") for name, preset in presets_of(sizes).items()}
    own = plan_of(manifest)
    if plans.get(manifest.variant) != own:
        plans["this bundle"] = own
    table = Table(
        title=(
            f"Cache in bytes: {manifest.precision}, {BEAMS} beams, source of {sizes.max_source}, output of {T} tokens"
        ),
        title_justify="left",
        box=box.SIMPLE,
    )
    for heading in ("variant", "batch", "source", "generated", "total", "share"):
        table.add_column(heading, justify="left" if heading == "variant" else "right", no_wrap=True)
    for batch in BATCHES:
        run_size = RunSize(B=batch, M=BEAMS, N=sizes.max_source, T=T, itemsize=itemsize(manifest.precision))
        whole = sum(PRESETS["baseline"].cache_bytes(sizes, run_size))
        for name, plan in plans.items():
            source, generated = plan_bytes(plan, sizes, run_size)
            total = source + generated
            style = "bold" if plan == own else None
            row = (name, str(batch), f"{source:,}", f"{generated:,}", f"{total:,}", f"{total / whole:.1%}")
            table.add_row(*row, style=style, end_section=name == list(plans)[-1])
    return table


def passes_table(bundle: Bundle) -> Table:
    """Places that each pass rewrote, and bytes that it saved, for batch 1 and the model's full lengths."""
    table = Table(title=f"Passes of {bundle.manifest.variant}, batch 1", title_justify="left", box=box.SIMPLE)
    for heading in ("pass", "places", "bytes saved", ""):
        table.add_column(heading, justify="right" if heading in ("places", "bytes saved") else "left")
    for entry in bundle.manifest.passes:
        table.add_row(entry.name, str(entry.matched), f"{entry.bytes_saved:,}", entry.reason)
    return table


def guard_table(bundle: Bundle) -> Table:
    """The error of each layer's rewritten attention on real activations, and the kind of cache that follows."""
    title = f"Error of attention in {bundle.manifest.precision}, on real activations"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in ("layer", "part", "wanted", "error", "allowed", "cond(W_K)", "kept"):
        table.add_column(heading, justify="left" if heading in ("part", "wanted", "kept") else "right", no_wrap=True)
    for entry in bundle.manifest.guard:
        error = "no number" if entry.error is None else f"{entry.error:.1e}"
        condition = "no inverse" if entry.condition is None else f"{entry.condition:.0e}" if entry.condition else ""
        style = None if entry.kept == entry.wanted else "bold"
        figures = (error, f"{entry.allowed:.1e}", condition)
        table.add_row(str(entry.layer), entry.part, entry.wanted, *figures, entry.kept, style=style)
    return table
