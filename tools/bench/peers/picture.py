"""Samples per second by engine and batch, as bars; needs matplotlib (extra `dev`)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from tools.bench.peers.results import Group, Results
from tools.bench.pictures import PALE, colour_of, strip_axis

__all__ = ["draw"]


def draw(results: Results, groups: Sequence[Group]) -> Figure:
    """Draw bars of the groups, a panel for each batch size, the fastest engine first.

    Parameters
    ----------
    results : Results
        The records.
    groups : sequence of Group
        Groups of one shape and one number of beams.
    """
    engines = [
        sorted(
            (each for each in results.figures(group) if not each.is_floor), key=lambda each: -each.samples_per_second
        )
        for group in groups
    ]
    heights = list(map(len, engines))
    figure = Figure(figsize=(5.6, 0.2 * sum(heights) + 0.4 * len(groups) + 0.8), layout="constrained")
    axes = figure.subplots(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
    longest = max(each.samples_per_second for one in engines for each in one)
    for axis, group, one in zip(axes, groups, engines, strict=True):
        rates = [each.samples_per_second for each in one]
        bars = axis.barh([each.engine for each in one], rates, height=0.74)
        for bar, each in zip(bars, one, strict=True):
            bar.set_facecolor(colour_of(each.engine))
            bar.set_alpha(1 if each.engine.partition(",")[0].endswith("int8") else PALE)
        axis.bar_label(bars, [f"{rate:.3g}" for rate in rates], padding=3, fontsize=8)
        strip_axis(axis, 1.15 * longest)
        axis.tick_params(axis="y", labelsize=8.5)
        axis.set_title(f"batch {group.batch}", fontsize=9.5, fontweight="bold", loc="left")
    first = groups[0]
    search = f"{first.beams} beams" if first.beams > 1 else "greedy"
    length = f", {first.source} tokens in" if first.source else ""
    size = f"{first.shape}{length}, {first.new_tokens} out, {search}"
    figure.suptitle(f"Samples per second: {size}; pale bars are float32", fontsize=10)
    return figure
