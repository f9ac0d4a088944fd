"""Plots of the cache bytes of each variant, and of a decode step under the roofline; needs matplotlib (extra `dev`).

    python -m tools.bench.cost_plots memory
    python -m tools.bench.cost_plots roofline                       # of this machine, measured
    python -m tools.bench.cost_plots roofline --machine "an NVIDIA H200" --bandwidth-gb-s 4800 --tflop-s 989 \
        --itemsize 2

Bytes are those of graph_passes/caches/bytes.py, bytes and operations of a step those of graph_passes/caches/cost.py,
at the sizes of BART-large.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tightbeam.export.auto.machine import this_machine
from tightbeam.graph_passes import PRESETS, RunSize, Sizes, same_for_all
from tightbeam.graph_passes.caches.cost import Machine, WeightCounts, Work, step_work
from tools.papers.el import BART_LARGE

FFN = 4096
"""BART-large's, which `Sizes` does not hold."""
SOURCE_COLOUR, OUTPUT_COLOUR = "#1f5a92", "#e08b2c"
COLOURS = {
    "kv-per-beam": "#8a8a8a",
    "kv-reordered": "#8a8a8a",
    "kv": "#1f5a92",
    "k": "#2e8b57",
    "states": "#c0392b",
    "x": "#c0392b",
    "first-k": "#e0b52c",
}
"""Colours by kind of cache; source and output caches differ in their marker."""
WEIGHTS = "products with weights"
BATCHES = (1, 8, 32)
DPI = 110


def decoder_weights(sizes: Sizes) -> WeightCounts:
    """Numbers that a step multiplies: six projections and two feed-forward products a layer, and the logits."""
    return WeightCounts(0, sizes.L * (6 * sizes.D**2 + 2 * sizes.D * FFN) + sizes.D * sizes.vocabulary)


def draw_memory(sizes: Sizes, N: int, T: int, M: int, itemsize: int) -> Figure:
    """Stacked bars for each variant, a panel for each batch size: bytes of the source and of the output cache."""
    figure = Figure(figsize=(9.2, 3.4), layout="constrained")
    axes = figure.subplots(1, len(BATCHES), sharey=True)
    names = list(PRESETS)[::-1]
    for axis, B in zip(axes, BATCHES, strict=True):
        run = RunSize(B=B, M=M, N=N, T=T, itemsize=itemsize)
        kept = [PRESETS[name].cache_bytes(sizes, run) for name in names]
        source, output = ([both[part] / 1e6 for both in kept] for part in (0, 1))
        axis.barh(names, source, color=SOURCE_COLOUR, label="for the source")
        axis.barh(names, output, left=source, color=OUTPUT_COLOUR, label="for the output")
        for row, total in enumerate(map(sum, zip(source, output, strict=True))):
            axis.text(total, row, f" {total:,.0f}", va="center", fontsize=8)
        axis.set_xlim(0, 1.25 * max(map(sum, kept)) / 1e6)
        axis.set_title(f"batch {B}", fontsize=10)
        axis.set_xlabel("MB")
        axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.tick_params(left=False, labelsize=8.5)
        axis.spines[["top", "right", "left"]].set_visible(False)
    axes[-1].legend(loc="lower right", frameon=False, fontsize=8.5)
    figure.suptitle(
        f"Caches of BART-large, {_type(itemsize)}, {M} beams, source of {N:,} and output of {T} tokens", fontsize=11
    )
    return figure


def draw_roofline(sizes: Sizes, machine: Machine, name: str, run: RunSize) -> Figure:
    """Operations a byte against the rate that the roofline allows: the products with weights, and the attention over
    each kind of cache, all layers together. A marker's area grows with the time that the cost model predicts."""
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    axis = figure.subplots()
    ridge = machine.rate / machine.bandwidth
    points = sorted(_points(sizes, run), key=lambda point: -point[2].seconds(machine))
    intensities = [work.operations / work.bytes for _, _, work in points]
    low, high = min(*intensities, ridge) / 2, max(*intensities, ridge) * 3
    axis.plot([low, ridge, high], [low * machine.bandwidth, machine.rate, machine.rate], color="#444444", linewidth=1.2)
    longest = max(work.seconds(machine) for _, _, work in points)
    for kind, marker, work in points:
        intensity = work.operations / work.bytes
        axis.scatter(
            intensity,
            work.operations / work.seconds(machine),
            s=25 + 275 * work.seconds(machine) / longest,
            marker=marker,
            facecolor=COLOURS.get(kind, "#ffffff"),
            edgecolor="#222222",
            linewidth=0.6,
            alpha=0.8,
            zorder=3,
        )
    _legend(axis, points, machine)
    axis.set(xscale="log", yscale="log", xlim=(low, high))
    axis.set_xlabel("operations a byte")
    axis.set_ylabel("operations a second, at most")
    axis.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(
        f"A decode step of BART-large on {name}: {machine.bandwidth / 1e9:,.0f} GB/s, {_rate(machine.rate)}\n"
        f"batch {run.B}, {run.M} beams, source of {run.N:,}, {run.T} tokens generated, {_type(run.itemsize)}; "
        "area: predicted time",
        fontsize=10,
        loc="left",
    )
    return figure


def _points(sizes: Sizes, run: RunSize) -> list[tuple[str, str, Work]]:
    """Kind of cache, marker and work, all layers together."""
    weights = decoder_weights(sizes)
    points: dict[tuple[str, str], Work] = {}
    for preset in PRESETS.values():
        works = step_work(same_for_all(preset, sizes.L, ""), sizes, run, weights)
        points[WEIGHTS, "D"] = works[0]
        points[preset.source, "o"] = _together("source attention", works)
        points[preset.generated, "s"] = _together("generated attention", works)
    return [(kind, marker, work) for (kind, marker), work in points.items()]


def _together(what: str, works: Sequence[Work]) -> Work:
    same = [work for work in works if work.name == what]
    return Work(what, sum(work.bytes for work in same), sum(work.operations for work in same))


def _legend(axis: Axes, points: Sequence[tuple[str, str, Work]], machine: Machine) -> None:
    """One line a point, the slowest first, since markers may overlap."""
    places = {"D": "", "o": " for the source", "s": " for the output"}
    for kind, marker, work in points:
        axis.scatter(
            [],
            [],
            s=45,
            marker=marker,
            facecolor=COLOURS.get(kind, "#ffffff"),
            edgecolor="#222222",
            linewidth=0.6,
            label=f"{kind}{places[marker]}, {_milliseconds(work.seconds(machine))}",
        )
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 1e-2 else f"{1e3 * seconds:,.0f} ms"


def _rate(rate: float) -> str:
    return f"{rate / 1e12:,.0f} TFLOP/s" if rate >= 1e13 else f"{rate / 1e9:,.0f} GFLOP/s"


def _type(itemsize: int) -> str:
    return {2: "float16", 4: "float32"}[itemsize]


app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Beams = Annotated[int, typer.Option(min=1, help="Beams a sample.")]
SourceLength = Annotated[int, typer.Option(min=1, help="Source length in tokens.")]
OutputLength = Annotated[
    int, typer.Option(min=1, help="Output length in tokens; the roofline shows the step at half of it.")
]
Itemsize = Annotated[int, typer.Option(help="Bytes of a number: 2 or 4.")]
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@app.command()
def memory(
    output: Annotated[Path, typer.Option(help="File to write.")] = IMAGES / "memory.png",
    beams: Beams = 4,
    source: SourceLength = 1024,
    new_tokens: OutputLength = 141,
    itemsize: Itemsize = 4,
) -> None:
    """Plot the cache bytes of each variant."""
    _require_itemsize(itemsize)
    _save(draw_memory(BART_LARGE, source, new_tokens, beams, itemsize), output)


@app.command()
def roofline(
    output: Annotated[Path, typer.Option(help="File to write.")] = IMAGES / "roofline.png",
    batch: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 8,
    beams: Beams = 4,
    source: SourceLength = 1024,
    new_tokens: OutputLength = 141,
    itemsize: Itemsize = 4,
    machine: Annotated[str, typer.Option(help="Name of the machine, for the title.")] = "this machine",
    bandwidth_gb_s: Annotated[float | None, typer.Option(help="Memory bandwidth; measured here if not given.")] = None,
    tflop_s: Annotated[float | None, typer.Option(help="Rate of matrix products; measured here if not given.")] = None,
) -> None:
    """Plot the roofline of a machine with the parts of a decode step."""
    _require_itemsize(itemsize)
    if (bandwidth_gb_s is None) != (tflop_s is None):
        raise typer.BadParameter("give --bandwidth-gb-s and --tflop-s together, or neither to measure this machine")
    if bandwidth_gb_s is None or tflop_s is None:
        numbers = this_machine().machine
    elif bandwidth_gb_s > 0 and tflop_s > 0:
        numbers = Machine(bandwidth_gb_s * 1e9, tflop_s * 1e12)
    else:
        raise typer.BadParameter("--bandwidth-gb-s and --tflop-s must be more than 0")
    run = RunSize(B=batch, M=beams, N=source, T=max(1, new_tokens // 2), itemsize=itemsize)
    _save(draw_roofline(BART_LARGE, numbers, machine, run), output)


def _require_itemsize(itemsize: int) -> None:
    if itemsize not in (2, 4):
        raise typer.BadParameter(f"itemsize {itemsize} is unknown; expected 2 (float16) or 4 (float32)")


def _save(figure: Figure, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"cannot write {path}: {error}; pass --output with another file") from None
    print(path)


if __name__ == "__main__":
    app()
