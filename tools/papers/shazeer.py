"""Fast Transformer Decoding (Shazeer 2019): memory access of multi-query attention, and the widths of its tables."""

from __future__ import annotations

from dataclasses import replace

from rich import box
from rich.table import Table

from tightbeam.graph_passes import PRESETS, RunSize, Sizes, same_for_all
from tightbeam.graph_passes.caches.cost import WeightCounts, step_work
from tools.papers.figures import Figure, PaperTable

__all__ = ["MULTI_HEAD", "MULTI_QUERY", "ratios", "shazeer_memory", "shazeer_ratios", "shazeer_widths"]

MULTI_HEAD = Sizes(
    D=1024, H=8, G=8, K=128, V=128, L=6, vocabulary=1, source_vocabulary=1, max_source=256, max_target=256
)
"""The paper's baseline (section 4.1). It prints no vocabulary, and no figure here depends on one."""
MULTI_QUERY = replace(MULTI_HEAD, G=1)

REDUCED = ((1, 128), (2, 64), (4, 32), (8, 16))
"""h and d_k of the multi-head models with a smaller h d_k."""


def shazeer_memory() -> PaperTable:
    """Section 3: keys and values h times smaller, in the caches of source and output and in the reads of a step."""
    run = RunSize(B=1024, M=1, N=128, T=128, itemsize=1)
    many, one = (PRESETS["dedup"].cache_bytes(sizes, run) for sizes in (MULTI_HEAD, MULTI_QUERY))
    weights = WeightCounts(0, 0)
    plan = same_for_all(PRESETS["dedup"], MULTI_HEAD.L, "")
    read = [sum(work.bytes for work in step_work(plan, sizes, run, weights)) for sizes in (MULTI_HEAD, MULTI_QUERY)]
    figures = (
        Figure("kept for the source", "times smaller, h = 8", "8", many[0] / one[0]),
        Figure("kept for the output", "times smaller, h = 8", "8", many[1] / one[1]),
        Figure("read in a step", "times smaller, h = 8", "8", read[0] / read[1]),
    )
    return PaperTable("Shazeer, section 3: keys and values of multi-head over multi-query attention", figures)


def ratios(sizes: Sizes, b: int, n: int) -> tuple[float, float]:
    """Memory access over arithmetic (numbers by multiplications) of self-attention, over n steps for b sequences.

    The paper's expression (sections 2.4.1 and 3.1), and the sums of our cost model over the same steps. The expression
    leaves constant factors open, the cost model leaves activations out (the paper's 1 / d).
    """
    D, H, G, K, V = sizes.D, sizes.H, sizes.G, sizes.K, sizes.V
    one_layer = replace(sizes, L=1)
    weights = WeightCounts(0, D * (H * K + G * (K + V)) + H * V * D)
    plan = same_for_all(PRESETS["dedup"], 1, "")
    numbers = operations = 0
    for t in range(1, n + 1):
        works = step_work(plan, one_layer, RunSize(B=b, M=1, N=0, T=t, itemsize=1), weights)
        numbers += sum(work.bytes for work in works)
        operations += sum(work.operations for work in works)
    printed = n / D + 1 / b if G == H else 1 / D + n / (D * H) + 1 / b
    return printed, numbers / (operations / 2)


def shazeer_ratios() -> Table:
    """Sections 2.4.1 and 3.1: n / d + 1 / b and 1 / d + n / (d h) + 1 / b next to the counts of our cost model."""
    table = Table(
        title="Shazeer, sections 2.4.1 and 3.1: memory access over arithmetic (d = 1,024, h = 8)",
        caption="The expressions leave constant factors open: counts must lie between 1/5 of them and all of them.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE,
    )
    for heading in ("b", "n", "n/d + 1/b", "counted", "of it", "1/d + n/(dh) + 1/b", "counted", "of it", "MQA saves"):
        table.add_column(heading, justify="right")
    for b in (1, 32, 1024):
        for n in (128, 1024):
            many, one = ratios(MULTI_HEAD, b, n), ratios(MULTI_QUERY, b, n)
            cells = [text for pair in (many, one) for text in (*map("{:.4f}".format, pair), f"{pair[1] / pair[0]:.2f}")]
            table.add_row(f"{b:,}", f"{n:,}", *cells, f"{many[1] / one[1]:.2f}x")
    return table


def projections(D: int, H: int, G: int, K: int) -> int:
    """Numbers in the four projections of one attention, keys as wide as values."""
    return D * (2 * H * K + 2 * G * K)


def equal_width(D: int, d_ff: int, attentions: int, feed_forwards: int, saved: int) -> float:
    """The d_ff that returns ``saved`` weights of each attention to the feed-forwards of a model."""
    return d_ff + attentions * saved / (feed_forwards * 2 * D)


def shazeer_widths() -> PaperTable:
    """Tables 1 and 3: d_ff of each variation, which makes up for the numbers that its attention lacks."""
    D, H, K = MULTI_HEAD.D, MULTI_HEAD.H, MULTI_HEAD.K
    baseline = projections(D, H, H, K)
    models = {
        "translation, Table 1": (4096, 18, 12, "5440", "6784"),
        "language model, Table 3": (8192, 6, 6, "9088", "9984"),
    }
    figures = []
    for column, (d_ff, attentions, feed_forwards, for_one, for_reduced) in models.items():
        saved = baseline - projections(D, H, 1, K)
        width = equal_width(D, d_ff, attentions, feed_forwards, saved)
        figures.append(Figure("multi-query, h = 8, d_k = 128", column, for_one, width))
        for h, d_k in REDUCED:
            saved = baseline - projections(D, h, h, d_k)
            width = equal_width(D, d_ff, attentions, feed_forwards, saved)
            figures.append(Figure(f"multi-head, h = {h}, d_k = {d_k}", column, for_reduced, width))
    return PaperTable(
        "Shazeer, Tables 1 and 3: d_ff at an equal number of parameters",
        tuple(figures),
        ("6 + 6 layers with 18 attentions and 12 feed-forwards; the language model has 6 of each.",),
    )
