"""EL-attention (Yan et al., ICML 2021): the bytes of its tables, by the formulas of our variants."""

from __future__ import annotations

from transformers import BartConfig

from tightbeam.export.families.table import FAMILIES
from tightbeam.graph_passes import PRESETS, RunSize, Sizes, same_for_all
from tightbeam.graph_passes.caches.bytes import source_bytes
from tightbeam.graph_passes.caches.cost import WeightCounts, Work, encoder_work, step_work
from tools.papers.figures import Figure, PaperTable

__all__ = ["BART_LARGE", "GIB", "HALF", "el_memory", "el_movement", "el_saving"]

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
