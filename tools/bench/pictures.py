"""Pictures of the measurements; needs matplotlib.

    python -m tools.bench.pictures        # after a change of the figures

    docs/images/beside-peers.svg          and the table of docs/benchmarks.md, of docs/benchmarks/figures.toml
    docs/images/divergence-by-size.svg    of the table of docs/benchmarks/zoo.md

Pictures have a light background of their own, so that they are legible on a dark page.
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
FIGURES, PAGE = DOCS / "benchmarks" / "figures.toml", DOCS / "benchmarks.md"
PICTURE = DOCS / "images" / "beside-peers.svg"
FORMS_PAGE, FORMS_PICTURE = DOCS / "benchmarks" / "zoo.md", DOCS / "images" / "divergence-by-size.svg"
COLOURS = {
    "Tightbeam": "#1f7a54",
    "CTranslate2": "#b4501f",
    "faster-whisper": "#b4501f",
    "llama.cpp": "#7a4fb0",
    "OpenVINO": "#1f5fbf",
    "optimum-onnx": "#b0883b",
    "transformers": "#56657a",
}
FORMS = {"int8": "o", "int4": "o", "CTranslate2 int8": "s", "llama.cpp Q8_0": "^", "llama.cpp Q4_0": "^"}
"""Forms of the table that are drawn, and the marker of each."""
SEASONED = "-all"
PALE = 0.5
"""Opacity of float32 beside smaller numbers."""
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


def read_jobs(path: Path) -> list[Figures]:
    """Read the figures of all jobs."""
    jobs: list[Figures] = tomllib.loads(path.read_text("utf-8"))["job"]
    return jobs


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
                bar.set_facecolor(COLOURS[engine["name"]])
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


def strip_axis(axis: Axes, most: float) -> None:
    """Leave an axis of bars, the first on top, without scale or frame."""
    axis.set_xlim(0, most)
    axis.set_xticks([])
    axis.invert_yaxis()
    axis.tick_params(left=False)
    axis.spines[:].set_visible(False)


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


def with_table(page: str, jobs: Sequence[Figures]) -> str:
    """Return the text of a page with its table made anew."""
    table = "\n".join(peers_table(jobs))
    page, count = re.subn(r"(<!-- job: [^\n]* -->\n).*?(<!-- end -->)", f"\\1\n{table}\n\n\\2", page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{PAGE}: expected one comment <!-- job: ... --> and its <!-- end -->; restore them")
    return page


def read_forms(page: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Read the first table of weights and divergences: by model, (megabytes, nats) by form."""
    table = page.partition("| model | form | weights, MB | divergence, nats |")[2].partition("\n\n")[0]
    found: dict[str, dict[str, tuple[float, float]]] = {}
    model = ""
    for line in table.splitlines()[2:]:
        name, form, weights, divergence = (cell.strip() for cell in line.split("|")[1:5])
        model = name or model
        if divergence:
            found.setdefault(model, {})[form] = float(weights.split()[0]), float(divergence)
    return found


def draw_forms(forms: Mapping[str, Mapping[str, tuple[float, float]]]) -> Figure:
    """Draw the divergence of each form over the bytes of its weights, a panel for each family."""
    families = [model for model in forms if f"{model}{SEASONED}" in forms]
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    for axis, family in zip(figure.subplots(1, len(families), sharey=True), families, strict=True):
        for model, filled in ((family, True), (f"{family}{SEASONED}", False)):
            for form, (megabytes, nats) in forms[model].items():
                engine, _, precision = form.rpartition(" ")
                if form not in FORMS:
                    continue
                colour = COLOURS[engine or "Tightbeam"]
                marker = {"marker": FORMS[form], "markersize": 8, "markeredgewidth": 1.6, "linestyle": ""}
                axis.plot(megabytes, nats, color=colour, markerfacecolor=colour if filled else BACKGROUND, **marker)
                aside = (7, -3) if engine else (-25, -3)
                axis.annotate(precision, (megabytes, nats), aside, textcoords="offset points", fontsize=7.5)
        axis.set_yscale("log")
        drawn = (*forms[family].values(), *forms[f"{family}{SEASONED}"].values())
        axis.set_xlim(0, 1.25 * max(megabytes for megabytes, _ in drawn))
        axis.set_title(family, fontsize=9.5, fontweight="bold", loc="left")
        axis.set_xlabel("weights, MB", fontsize=8.5)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    figure.axes[0].set_ylabel("divergence, nats a token", fontsize=8.5)
    engines = "green circles Tightbeam, brown squares CTranslate2, purple triangles llama.cpp"
    figure.suptitle(f"Divergence over size, hollow: seasoned weights\n{engines}", fontsize=9.5)
    return figure


def main(picture: Path = PICTURE, page: Path = PAGE, forms_picture: Path = FORMS_PICTURE) -> None:
    """Draw the pictures, and write the table."""
    jobs, forms = read_jobs(FIGURES), read_forms(FORMS_PAGE.read_text("utf-8"))
    unchanging: Any = {"Date": None, "Creator": None}
    with mpl.rc_context(STYLE):
        draw_peers(jobs).savefig(picture, metadata=unchanging)
        draw_forms(forms).savefig(forms_picture, metadata=unchanging)
    page.write_text(with_table(page.read_text("utf-8"), jobs), "utf-8")


if __name__ == "__main__":
    main()
