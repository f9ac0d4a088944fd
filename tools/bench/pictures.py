"""Pictures and tables of docs/benchmarks.md, made of docs/benchmarks/figures.toml; needs matplotlib (extra `dev`).

    python -m tools.bench.pictures        # after a change of the figures

Pictures are written to docs/images, tables into the page, between comments that name them. Each picture has a light
background of its own, so that it is legible on a dark page.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIGURES, PAGE, IMAGES = DOCS / "benchmarks" / "figures.toml", DOCS / "benchmarks.md", DOCS / "images"
COLOURS = {
    "Tightbeam": "#1f7a54",
    "CTranslate2": "#b4501f",
    "faster-whisper": "#b4501f",
    "llama.cpp": "#7a4fb0",
    "OpenVINO": "#1f5fbf",
    "optimum-onnx": "#b0883b",
    "transformers": "#56657a",
    "dedup": "#1f5a92",
    "el": "#c0392b",
    "baseline": "#8a8a8a",
    "served by": "#56657a",
    "served": "#1f7a54",
    "the runner": "#1f5a92",
    "products": "#222222",
}
PALE = 0.5
"""Opacity of float32 beside smaller numbers."""
ON_DISK, STEADY, PEAK = "#c3ccd6", "#1f5a92", "#e08b2c"
BACKGROUND, INK = "#fdfdfb", "#1c2733"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tightbeam",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": BACKGROUND,
    "axes.facecolor": BACKGROUND,
}

Figures = Mapping[str, Any]


def read_figures(path: Path) -> dict[str, Any]:
    """Read the figures."""
    return tomllib.loads(path.read_text("utf-8"))


def draw_peers(jobs: Sequence[Figures]) -> Figure:
    """Draw bars of seconds and of peak memory, a panel of each for each job."""
    heights = [len(job["engines"]) for job in jobs]
    figure = Figure(figsize=(7.6, 0.215 * sum(heights) + 0.48 * len(jobs) + 0.6), layout="constrained")
    axes = figure.subplots(len(jobs), 2, height_ratios=heights, squeeze=False)
    for (times, memory), job in zip(axes, jobs, strict=True):
        engines = job["engines"]
        names = [f"{engine['name']} {engine['precision']}" for engine in engines]
        for axis, key, form in ((times, "seconds", "{:.3g} s"), (memory, "peak_mb", "{:,.0f} MB")):
            values = [engine[key] for engine in engines]
            bars = axis.barh(range(len(engines)), values, height=0.74)
            for bar, engine in zip(bars, engines, strict=True):
                bar.set_facecolor(colour_of(engine["name"]))
                bar.set_alpha(PALE if engine["precision"] == "float32" else 1)
            axis.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize=8)
            strip_axis(axis, 1.38 * max(values))
        times.set_yticks(range(len(engines)), names, fontsize=8.5)
        memory.set_yticks([])
        for label, engine in zip(times.get_yticklabels(), engines, strict=True):
            label.set_fontweight("bold" if engine["name"] == "Tightbeam" else "normal")
        times.set_title(job["title"], fontsize=9.5, fontweight="bold", loc="left", pad=15)
        memory.set_title("Peak memory", fontsize=9.5, fontweight="bold", loc="left", pad=15)
        times.text(0, 1.02, f"{job['model']}, {job['weights']}", fontsize=8.5, transform=times.transAxes)
    figure.suptitle("Time and memory beside each peer: shorter is better; pale bars are float32", fontsize=11)
    return figure


def draw_processes(processes: Sequence[Figures]) -> Figure:
    """Draw bars of a bundle on disk, and of the memory that a process of it keeps and needs at most."""
    figure = Figure(figsize=(7.6, 0.62 * len(processes) + 0.9), layout="constrained")
    axis = figure.subplots()
    parts = (("disk_mb", "on disk", ON_DISK), ("steady_mb", "kept, beside files", STEADY), ("peak_mb", "peak", PEAK))
    for place, (key, label, colour) in enumerate(parts):
        rows = [(index, process[key]) for index, process in enumerate(processes) if key in process]
        bars = axis.barh(
            [index + 0.26 * (place - 1) for index, _ in rows],
            [value for _, value in rows],
            height=0.25,
            color=colour,
            label=label,
        )
        axis.bar_label(bars, [f"{value:,.0f} MB" for _, value in rows], padding=3, fontsize=8)
    names = [f"{process['model'].partition(',')[0]}\n{process['precision']}" for process in processes]
    axis.set_yticks(range(len(processes)), names, fontsize=8.5)
    strip_axis(axis, 1.15 * max(process[key] for process in processes for key, *_ in parts if key in process))
    axis.legend(loc="lower right", frameon=False, fontsize=8.5)
    figure.suptitle("Memory of a process beside its bundle", fontsize=11)
    return figure


def draw_curves(curves: Figures) -> Figure:
    """Draw the lines of each panel, named at their ends."""
    panels = curves["panel"]
    figure = Figure(figsize=(7.6, 3.3), layout="constrained")
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for line in panel["lines"]:
            name, y = line["name"], line["y"]
            is_pale = "float32" in name
            axis.plot(
                panel["x"][: len(y)],
                y,
                marker="o",
                markersize=4,
                linewidth=1.8,
                color=colour_of(name),
                alpha=PALE if is_pale else 1,
                linestyle="--" if "too" in name or "alone" in name else "-",
                label=name,
            )
        axis.set_title(panel["title"], fontsize=9.5, loc="left")
        axis.set_xlabel(panel["x_label"], fontsize=9)
        axis.set_ylabel(panel.get("y_label", ""), fontsize=9)
        axis.set_xticks(panel["x"])
        axis.set_xlim(0, None)
        if panel.get("log"):
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:,.0f}")
        else:
            axis.set_ylim(0, 1.05 * max(max(line["y"]) for line in panel["lines"]))
        axis.tick_params(labelsize=8.5)
        axis.grid(True, axis="y", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    lines, labels = figure.axes[0].get_legend_handles_labels()
    columns = 3 if len(labels) > 4 else len(labels)
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)
    figure.suptitle(curves["title"], fontsize=11)
    return figure


def strip_axis(axis: Axes, most: float) -> None:
    """Leave an axis of bars, the first on top, without scale or frame."""
    axis.set_xlim(0, most)
    axis.set_xticks([])
    axis.invert_yaxis()
    axis.tick_params(left=False)
    axis.spines[:].set_visible(False)


def colour_of(name: str) -> str:
    return next(colour for beginning, colour in COLOURS.items() if name.startswith(beginning))


def peers_table(jobs: Sequence[Figures]) -> Iterator[str]:
    """Make the lines of the table of all jobs."""
    yield "| job | weights, date | engine | seconds | peak MB |"
    yield "|---|---|---|---|---|"
    for job in jobs:
        first = f"{job['title']}: {job['model']}, {job['what']} | {job['weights']}, {job['date']}"
        for engine in job["engines"]:
            name = f"{engine['name']} {engine['precision']}"
            name = f"**{name}**" if engine["name"] == "Tightbeam" else name
            yield f"| {first} | {name} | {engine['seconds']:.3g} | {engine['peak_mb']:,} |"
            first = " | "


def processes_table(processes: Sequence[Figures]) -> Iterator[str]:
    """Make the lines of the table of processes."""
    yield "| model | precision | date | bundle on disk, MB | kept, MB | kept / disk | peak, MB | loading, s |"
    yield "|---|---|---|---|---|---|---|---|"
    for process in processes:
        disk, steady, peak = (process.get(key) for key in ("disk_mb", "steady_mb", "peak_mb"))
        ratio = f"{steady / disk:.2f}" if steady and disk else ""
        load = " to ".join(f"{seconds:g}" for seconds in process.get("load_s", ()))
        figures = (
            *(f"{value:,}" if value else "" for value in (disk, steady)),
            ratio,
            f"{peak:,}" if peak else "",
            load,
        )
        yield f"| {process['model']} | {process['precision']} | {process['date']} | {' | '.join(figures)} |"


def with_tables(page: str, figures: Figures) -> str:
    """Return the text of a page with its tables made anew."""
    for name, lines in (("job", peers_table(figures["job"])), ("process", processes_table(figures["process"]))):
        table = "\n".join(lines)
        comments = rf"(<!-- {name}: [^\n]* -->\n).*?(<!-- end -->)"
        page, count = re.subn(comments, f"\\1\n{table}\n\n\\2", page, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE}: expected one comment <!-- {name}: ... --> and its <!-- end -->; restore them")
    return page


def main(images: Path = IMAGES, page: Path = PAGE) -> None:
    """Draw all pictures, and write the tables."""
    figures = read_figures(FIGURES)
    with mpl.rc_context(STYLE):
        drawn = {"beside-peers": draw_peers(figures["job"]), "process-memory": draw_processes(figures["process"])}
        drawn |= {curves["picture"]: draw_curves(curves) for curves in figures["curves"]}
        for name, figure in drawn.items():
            figure.savefig(images / f"{name}.svg", metadata={"Date": None, "Creator": None})
            print(images / f"{name}.svg")
    page.write_text(with_tables(page.read_text("utf-8"), figures), "utf-8")


if __name__ == "__main__":
    main()
