"""EL-attention (Yan et al., ICML 2021): the bytes of its tables, by the formulas of our variants."""

from __future__ import annotations

from transformers import BartConfig

from tightbeam.export.families.table import FAMILIES
from tightbeam.graph_passes import PRESETS, RunSize, Sizes, same_for_all
from tightbeam.graph_passes.caches.bytes import source_bytes
from tightbeam.graph_passes.caches.cost import WeightCounts, Work, encoder_work, step_work
from tools.papers.figures import Figure, PaperTable, quotient_can_be

__all__ = ["BART_LARGE", "GIB", "HALF", "TABLE_2", "el_memory", "el_movement", "el_ratios", "el_saving"]

HALF = 2
"""Bytes of a number in half precision, in which the paper counts."""

BART_LARGE: Sizes = next(family for family in FAMILIES if family.model_type == "bart").sizes(
    BartConfig(
        d_model=1024,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
        encoder_ffn_dim=4096,
        decoder_ffn_dim=4096,
        max_position_embeddings=1024,
        vocab_size=50264,
    )
)
"""The published sizes of BART-large, as the family reads them off a config."""

GIB = 2**30
BEAMS = 4

TABLE_4 = {
    (32, 256): ("1.5 GB", "0.02 GB"),
    (32, 1024): ("6 GB", "0.06 GB"),
    (64, 256): ("3 GB", "0.03 GB"),
    (64, 1024): ("12 GB", "0.13 GB"),
    (320, 256): ("15 GB", "0.15 GB"),
    (320, 1024): ("60 GB", "0.63 GB"),
}
"""(B, N) -> multi-head attention, EL-attention, as printed."""

TABLE_2 = {
    ("beam search", "Transformer, SQuAD 1.1"): ("170.9", "458.1", "2.7x", "86.6", "173.6", "2.0x"),
    ("beam search", "BART, XSum"): ("14.7", "69.4", "4.7x", "6.8", "26.3", "3.9x"),
    ("beam search", "BART, CNN/DailyMail"): ("5.7", "28.6", "5.0x", "3.4", "12.2", "3.6x"),
    ("beam search", "GPT-2 small"): ("2.1", "3.8", "1.8x", "1.5", "2.5", "1.7x"),
    ("beam search", "GPT-2 medium"): ("0.9", "2.0", "2.2x", "0.6", "1.1", "1.8x"),
    ("diverse beam search", "Transformer, SQuAD 1.1"): ("162.3", "454.1", "2.8x", "82.1", "171.8", "2.1x"),
    ("diverse beam search", "BART, XSum"): ("15.8", "71.9", "4.6x", "7.2", "27.5", "3.8x"),
    ("diverse beam search", "BART, CNN/DailyMail"): ("5.4", "28.5", "5.3x", "3.2", "12.0", "3.8x"),
    ("greedy search", "Transformer, SQuAD 1.1"): ("436.4", "699.7", "1.6x", "190.3", "260.3", "1.4x"),
    ("greedy search", "BART, XSum"): ("42.6", "107.8", "2.5x", "15.0", "44.9", "3.0x"),
    ("greedy search", "BART, CNN/DailyMail"): ("13.0", "40.0", "3.1x", "7.0", "19.5", "2.8x"),
    ("greedy search", "GPT-2 small"): ("14.7", "26.2", "1.8x", "9.0", "13.6", "1.5x"),
    ("greedy search", "GPT-2 medium"): ("5.9", "10.4", "1.8x", "3.6", "5.9", "1.6x"),
}
"""Search and model -> samples a second of multi-head attention, of EL, and the speed-up: float16, then float32."""


def el_ratios() -> PaperTable:
    """Table 2: the ratios that the printed cells give, of beam, diverse beam and greedy search."""
    figures, impossible = [], []
    for (search, model), cells in TABLE_2.items():
        for precision, (below, above, printed) in zip(("float16", "float32"), (cells[:3], cells[3:]), strict=True):
            row = f"{search}, {model}"
            figures.append(Figure(row, precision, printed, float(above) / float(below)))
            if not quotient_can_be(printed, above, below):
                impossible.append(f"{row}, {precision}: {printed} is printed where {above} / {below} gives another.")
    return PaperTable("EL-attention, Table 2: ratios of the paper's own cells", tuple(figures), tuple(impossible))


def el_memory() -> PaperTable:
    """Table 4: the source cache of `baseline` and of `el` at BART-large's sizes."""
    figures = []
    for (B, N), printed in TABLE_4.items():
        run = RunSize(B=B, M=BEAMS, N=N, T=0, itemsize=HALF)
        for variant, column, cell in zip(("baseline", "el"), ("multi-head", "EL"), printed, strict=True):
            kept = PRESETS[variant].cache_bytes(BART_LARGE, run)[0]
            figures.append(Figure(f"batch {B}, {N:,} tokens", column, cell, kept / GIB))
    return PaperTable(
        "EL-attention, Table 4: what is kept for the source, GiB (BART-large, float16, 4 beams)",
        tuple(figures),
        (
            "The paper's GB are 2^30 bytes.",
            "0.15 GB at batch 320 and 256 tokens is 15 / 96 = 0.15625, cut; the other small cells are rounded.",
        ),
    )


def el_saving() -> PaperTable:
    """The factor 96 = 2 L M of sections 1 and 4.4, and the smaller one where the encoder's output is stored twice."""
    run = RunSize(B=1, M=BEAMS, N=1024, T=0, itemsize=HALF)
    kept = {name: PRESETS[name].cache_bytes(BART_LARGE, run)[0] for name in ("baseline", "dedup", "el")}
    two_layouts = 2 * source_bytes(["states"], BART_LARGE, run)
    figures = (
        Figure("one layout, as in the text", "saving", "96x", kept["baseline"] / kept["el"]),
        Figure("two layouts, as in the paper's code", "saving", "96x", kept["baseline"] / two_layouts),
        Figure("per layer: keys and values / states, 2 L", "saving", "24x", kept["dedup"] / kept["el"]),
    )
    return PaperTable(
        "EL-attention: how many times smaller (BART-large, 4 beams)",
        figures,
        (
            "The paper's code (fastseq, el_attention_optimizer.py: encoder_out and encoder_out_v) keeps the encoder's "
            "output as [B, D, N] and as [B, N, D]: 48 times smaller, not 96. Ours keeps one [B, N, D].",
            "24 is the paper's '2L times' (section 3.1.1) with the 12 layers of BART-large.",
        ),
    )


def el_movement() -> PaperTable:
    """Section 4.1.1: what one layer's attention moves and multiplies, by the cost model."""
    run, nothing = RunSize(B=32, M=BEAMS, N=1024, T=0, itemsize=HALF), WeightCounts(0, 0)

    def source_attention(variant: str) -> Work:
        works = step_work(same_for_all(PRESETS[variant], 1, ""), BART_LARGE, run, nothing)
        return next(work for work in works if work.name == "source attention")

    every_row = RunSize(B=run.R, M=1, N=run.N, T=0, itemsize=HALF)
    built = encoder_work(same_for_all(PRESETS["dedup"], 1, ""), BART_LARGE, every_row, nothing)[-1].operations
    many, one = source_attention("baseline"), source_attention("el")
    figures = (
        Figure("multi-head, GB moved", "group 3", "0.5", many.bytes / GIB),
        Figure("multi-head, operations a byte", "group 3", "1", many.operations / many.bytes),
        Figure("EL, GB moved", "group 3", "0.15", one.bytes / GIB),
    )
    return PaperTable(
        "EL-attention, section 4.1.1: one layer over the source (batch 32, 4 beams, 1,024 tokens, float16)",
        figures,
        (
            "For EL the cost model counts the encoder's output once and the two products' weights; the paper's code "
            "reads one layout for the scores and one for the values, and writes the scores between.",
            f"Keys and values of every row, without a cache: {built / 1e9:.0f} GFLOP; the paper: more than 500.",
        ),
    )
