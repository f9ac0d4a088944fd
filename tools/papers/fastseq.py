"""FastSeq (Yan et al., 2021): cache sizes of its Table 2 by formula, and a check of its ratios against its cells."""

from __future__ import annotations

from tightbeam.graph_passes import PRESETS, RunSize
from tools.papers.el import BART_LARGE, GIB, HALF
from tools.papers.figures import Figure, PaperTable, quotient_can_be

__all__ = ["TABLE_1", "TABLE_3", "fastseq_cache", "fastseq_ratios"]

BEAMS, SOURCE, OUTPUT = 4, 1024, 50
"""The lengths that the caption of Table 2 names."""

TABLE_1 = {
    "BART": ("2.4", "18.4", "7.7x"),
    "DistilBART": ("3.4", "18.5", "5.4x"),
    "ProphetNet": ("2.8", "10.7", "3.8x"),
    "T5": ("8.7", "31.3", "4.3x"),
    "Transformer": ("96.0", "417.0", "4.3x"),
    "GPT2": ("3.0", "16.7", "5.5x"),
    "UniLM": ("1.7", "16.4", "9.6x"),
}
"""Model -> samples a second of the baseline and of FastSeq, and the speed-up, as printed."""

TABLE_3 = {"baseline / CPU kernel": ("584.9", "4477.1", "8x"), "CPU / GPU kernel": ("7.8", "584.9", "75x")}
"""Times in ms of the n-gram block, the shorter first, and their ratio as section 5.3 prints it."""


def cache_gib(variant: str, B: int) -> float:
    """GiB of both caches together after OUTPUT tokens, float16."""
    return sum(PRESETS[variant].cache_bytes(BART_LARGE, RunSize(B=B, M=BEAMS, N=SOURCE, T=OUTPUT, itemsize=HALF))) / GIB


def fastseq_cache() -> PaperTable:
    """Table 2, column "Cache": both caches of `baseline` and of `dedup`, and how many times smaller."""
    rows = (
        ("conventional cache, batch 32", "baseline", 32, "6.3 GB"),
        ("optimised cache, batch 32", "dedup", 32, "1.8 GB"),
        ("optimised cache, batch 128", "dedup", 128, "7.2 GB"),
    )
    figures = [Figure(row, "cache", printed, cache_gib(variant, B)) for row, variant, B, printed in rows]
    ratio = cache_gib("baseline", 32) / cache_gib("dedup", 32)
    figures.append(Figure("conventional / optimised", "cache", "3.5x", ratio))
    return PaperTable(
        "FastSeq, Table 2: source of 1,024 and output of 50 tokens, GiB (BART-large, float16, 4 beams)",
        tuple(figures),
        ("The ratio is M (N + T) / (N + M T): the source loses its copies for each beam, the output does not.",),
    )


def fastseq_ratios() -> PaperTable:
    """Tables 1 and 3: the ratios that the printed cells give."""
    figures, impossible = [], []
    for row, (below, above, printed) in (TABLE_1 | TABLE_3).items():
        figures.append(Figure(row, "speed-up", printed, float(above) / float(below)))
        if not quotient_can_be(printed, above, below):
            impossible.append(f"{row}: {printed} is printed where {above} / {below} gives {figures[-1].ours:.1f}x.")
    return PaperTable("FastSeq, Tables 1 and 3: ratios of the paper's own cells", tuple(figures), tuple(impossible))
