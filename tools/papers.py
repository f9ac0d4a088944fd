"""Cache sizes and step counts of the papers' tables, by the formulas of our variants, beside the printed ones.

    python -m tools.papers             # all papers
    python -m tools.papers el slim

A line is a cell: what it is, what the paper prints, and what `cache_bytes` and the cost model of the exporter give for
the published sizes of the model. docs/papers.md says what follows from the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from tightbeam.graph_passes import PRESETS, RunSize, Sizes, same_for_all
from tightbeam.graph_passes.caches.bytes import source_bytes
from tightbeam.graph_passes.caches.cost import WeightCounts, Work, step_work
from tightbeam.graph_passes.caches.source.states import SOURCE_STATES

__all__ = ["PAPERS", "Cell", "shazeer_ratios"]

GIB = 2**30
NOTHING = WeightCounts(0, 0)


@dataclass(frozen=True)
class Cell:
    """A cell of a paper's table.

    Attributes
    ----------
    name : str
        What the cell holds.
    printed : str
        The number as the paper prints it, with its unit.
    ours : float
        Our number, in that unit.
    """

    name: str
    printed: str
    ours: float

    @property
    def agrees(self) -> bool:
        """True if our number, rounded to the printed digits, is the printed one."""
        number = re.sub(r"[^\d.]", "", self.printed)
        digits = len(number.partition(".")[2])
        return abs(self.ours - float(number)) <= 0.5 * 10.0**-digits + 1e-9


def decoder(D: int, L: int, H: int, K: int) -> Sizes:
    """Sizes of a decoder with as many key heads as query heads; no figure needs lengths and vocabularies."""
    return Sizes(D=D, H=H, G=H, K=K, V=K, L=L, vocabulary=1, source_vocabulary=1, max_source=1, max_target=1)


BART_LARGE = decoder(1024, 12, 16, 64)


def cache_numbers(variant: str, sizes: Sizes, B: int, M: int, N: int, T: int, itemsize: int = 1) -> tuple[int, int]:
    """Bytes of the source cache and of the generated cache of a variant; numbers, with an ``itemsize`` of 1."""
    return PRESETS[variant].cache_bytes(sizes, RunSize(B=B, M=M, N=N, T=T, itemsize=itemsize))


def fastseq() -> Iterator[Cell]:
    """FastSeq, Table 2: both caches of BART-large, float16, 4 beams, source of 1,024 and output of 50 tokens."""

    def gib(variant: str, B: int) -> float:
        return sum(cache_numbers(variant, BART_LARGE, B, 4, 1024, 50, 2)) / GIB

    yield Cell("conventional cache, batch 32", "6.3 GB", gib("baseline", 32))
    yield Cell("de-duplicated cache, batch 32", "1.8 GB", gib("dedup", 32))
    yield Cell("de-duplicated cache, batch 128", "7.2 GB", gib("dedup", 128))
    yield Cell("conventional / de-duplicated", "3.5x", gib("baseline", 32) / gib("dedup", 32))


EL_TABLE_4 = {
    (32, 256): ("1.5 GB", "0.02 GB"),
    (32, 1024): ("6 GB", "0.06 GB"),
    (64, 256): ("3 GB", "0.03 GB"),
    (64, 1024): ("12 GB", "0.13 GB"),
    (320, 256): ("15 GB", "0.15 GB"),
    (320, 1024): ("60 GB", "0.63 GB"),
}
"""(B, N) -> source cache of multi-head attention and of EL-attention, as printed."""


def el() -> Iterator[Cell]:
    """EL-attention, Table 4 and sections 3.1.1, 4.1.1 and 4.4: BART-large, float16, 4 beams."""
    for (B, N), printed in EL_TABLE_4.items():
        for variant, cell in zip(("baseline", "el"), printed, strict=True):
            kept = cache_numbers(variant, BART_LARGE, B, 4, N, 0, 2)[0]
            yield Cell(f"source cache of {variant}, batch {B}, {N:,} tokens", cell, kept / GIB)
    kept_by = {name: cache_numbers(name, BART_LARGE, 1, 4, 1024, 0)[0] for name in ("baseline", "dedup", "el")}
    yield Cell("baseline / el", "96x", kept_by["baseline"] / kept_by["el"])
    yield Cell("baseline / el with the states in two layouts", "96x", kept_by["baseline"] / (2 * kept_by["el"]))
    yield Cell("dedup / el, 2 L", "24x", kept_by["dedup"] / kept_by["el"])
    run = RunSize(B=32, M=4, N=1024, T=0, itemsize=2)

    def source_attention(variant: str) -> Work:
        works = step_work(same_for_all(PRESETS[variant], 1, ""), BART_LARGE, run, NOTHING)
        return next(work for work in works if work.name == "source attention")

    many, one = source_attention("baseline"), source_attention("el")
    yield Cell("GB that a layer of baseline moves, batch 32", "0.5", many.bytes / GIB)
    yield Cell("operations a byte of it", "1", many.operations / many.bytes)
    yield Cell("GB that a layer of el moves, batch 32", "0.15", one.bytes / GIB)


MULTI_HEAD = decoder(1024, 6, 8, 128)
MULTI_QUERY = replace(MULTI_HEAD, G=1)


def shazeer() -> Iterator[Cell]:
    """Fast Transformer Decoding, section 3: keys and values h times smaller, in the caches and in a step's reads."""
    many, one = (cache_numbers("dedup", sizes, 1024, 1, 128, 128) for sizes in (MULTI_HEAD, MULTI_QUERY))
    yield Cell("times smaller, source cache", "8", many[0] / one[0])
    yield Cell("times smaller, generated cache", "8", many[1] / one[1])
    run = RunSize(B=1024, M=1, N=128, T=128, itemsize=1)
    plan = same_for_all(PRESETS["dedup"], MULTI_HEAD.L, "")
    read = [sum(work.bytes for work in step_work(plan, sizes, run, NOTHING)) for sizes in (MULTI_HEAD, MULTI_QUERY)]
    yield Cell("times smaller, reads of a step", "8", read[0] / read[1])


def shazeer_ratios(sizes: Sizes, b: int, n: int) -> tuple[float, float]:
    """Memory access over arithmetic of self-attention over n steps of b sequences (sections 2.4.1 and 3.1).

    Returns the paper's expression, which leaves constant factors open, and the count of the cost model: numbers moved
    over multiplications.
    """
    D, H, G, K, V = sizes.D, sizes.H, sizes.G, sizes.K, sizes.V
    weights = WeightCounts(0, D * (H * K + G * (K + V)) + H * V * D)
    plan = same_for_all(PRESETS["dedup"], 1, "")
    numbers = operations = 0
    for t in range(1, n + 1):
        works = step_work(plan, replace(sizes, L=1), RunSize(B=b, M=1, N=0, T=t, itemsize=1), weights)
        numbers += sum(work.bytes for work in works)
        operations += sum(work.operations for work in works)
    printed = n / D + 1 / b if G == H else 1 / D + n / (D * H) + 1 / b
    return printed, numbers / (operations / 2)


SOURCE, OUTPUT, VOCABULARY = 1500, 448, 51865
"""Source positions, output tokens and vocabulary of Whisper."""
WHISPER = {
    "tiny": decoder(384, 4, 6, 64),
    "base": decoder(512, 6, 8, 64),
    "small": decoder(768, 12, 12, 64),
    "medium": decoder(1024, 24, 16, 64),
    "large": decoder(1280, 32, 20, 64),
}
OPTIONS = {"Baseline": "dedup", "Option 1": "kcache", "Option 2": "slim"}
"""The paper's names; its baseline has no beams, and `dedup` without beams is what it counts."""
PRINTED: dict[str, tuple[str, ...]] = {
    "Encoder E-cache": ("0.6", "0.8", "1.2", "1.5", "1.9"),
    "Cross KV-cache": ("4.6", "9.2", "27.6", "73.7", "122.9"),
    "Self KV-cache": ("1.4", "2.8", "8.3", "22.0", "36.7"),
    "Baseline cache": ("6.0", "12.0", "35.9", "95.7", "159.6"),
    "Option 1 cache": ("3.0", "6.0", "18.0", "47.9", "79.8"),
    "Option 2 cache": ("0.7", "1.4", "4.1", "11.0", "18.4"),
    "Option 2 savings": ("8.7x", "8.7x", "8.7x", "8.7x", "8.7x"),
    "Option 2 savings, E-cache kept": ("8.7x", "8.7x", "8.7x", "8.7x", "8.7x"),
    "Baseline params": ("28.2", "48.6", "138.9", "405.4", "800.4"),
    "Option 1 params": ("28.8", "50.1", "146.0", "430.6", "852.8"),
    "Option 2 params": ("29.4", "51.7", "153.1", "455.8", "905.2"),
    "Baseline reads, batch 1": ("34.2", "60.5", "174.8", "501.2", "960.0"),
    "Option 1 reads, batch 1": ("31.8", "56.1", "164.0", "478.5", "932.6"),
    "Option 2 reads, batch 1": ("30.0", "53.1", "157.2", "466.8", "923.6"),
    "Option 1 speedup, batch 1": ("1.08x", "1.08x", "1.07x", "1.05x", "1.03x"),
    "Option 2 speedup, batch 1": ("1.14x", "1.14x", "1.11x", "1.07x", "1.04x"),
    "Option 2 speedup, batch 1, E-cache read": ("1.14x", "1.14x", "1.11x", "1.07x", "1.04x"),
    "Baseline reads, batch 64": ("6.4", "12.7", "38.1", "102.1", "172.1"),
    "Option 1 reads, batch 64": ("3.4", "6.8", "20.2", "54.6", "93.1"),
    "Option 2 reads, batch 64": ("1.1", "2.2", "6.5", "18.1", "32.5"),
    "Option 1 speedup, batch 64": ("1.9x", "1.9x", "1.9x", "1.9x", "1.8x"),
    "Option 2 speedup, batch 64": ("5.6x", "5.8x", "5.8x", "5.6x", "5.3x"),
    "Option 2 speedup, batch 64, E-cache read": ("5.6x", "5.8x", "5.8x", "5.6x", "5.3x"),
}
"""Row of section 7 -> the cells of tiny, base, small, medium and large; millions. The paper takes the encoder's output
(E-cache) to stay on the chip; the rows with "kept" and "read" count it."""


def whisper_weights(sizes: Sizes) -> WeightCounts:
    """Numbers that a step multiplies: d vocabulary + L (6 d^2 + 2 d d_ff), with d_ff = 4 d."""
    return WeightCounts(0, sizes.D * VOCABULARY + sizes.L * 14 * sizes.D**2)


def whisper_reads(sizes: Sizes, variant: str, B: int, N: int = SOURCE, T: int = OUTPUT) -> float:
    """Numbers that a step reads for each of B samples, by the cost model, the encoder's output in every layer."""
    plan = same_for_all(PRESETS[variant], sizes.L, "")
    works = step_work(plan, sizes, RunSize(B=B, M=1, N=N, T=T, itemsize=1), whisper_weights(sizes))
    return sum(work.bytes for work in works) / B


def whisper_figures(sizes: Sizes) -> dict[str, float]:
    """Our figure for each row of ``PRINTED``."""
    kept = {name: cache_numbers(variant, sizes, 1, 1, SOURCE, OUTPUT) for name, variant in OPTIONS.items()}
    states = source_bytes([SOURCE_STATES] * sizes.L, sizes, RunSize(B=1, M=1, N=SOURCE, T=OUTPUT, itemsize=1))
    cache: dict[str, float] = {name: sum(both) for name, both in kept.items()}
    with_states = cache["Baseline"] / cache["Option 2"]
    cache["Option 2"] -= states
    million: dict[str, float] = {
        "Encoder E-cache": states,
        "Cross KV-cache": kept["Baseline"][0],
        "Self KV-cache": kept["Baseline"][1],
    }
    ratios = {"Option 2 savings": cache["Baseline"] / cache["Option 2"], "Option 2 savings, E-cache kept": with_states}
    for name, variant in OPTIONS.items():
        million[f"{name} cache"] = cache[name]
        million[f"{name} params"] = whisper_reads(sizes, variant, 1, 0, 0)
    for B in (1, 64):
        reads = {name: whisper_reads(sizes, variant, B) for name, variant in OPTIONS.items()}
        ratios[f"Option 2 speedup, batch {B}, E-cache read"] = reads["Baseline"] / reads["Option 2"]
        reads["Option 2"] -= sizes.L * states
        for name, numbers in reads.items():
            million[f"{name} reads, batch {B}"] = numbers
            ratios[f"{name} speedup, batch {B}"] = reads["Baseline"] / numbers
    return ratios | {row: numbers / 1e6 for row, numbers in million.items()}


SLIM_TABLE_1 = (
    ("CodeLlama-7B", 4096, 32, 32, 128, 16384, "4.3B"),
    ("CodeLlama-13B", 5120, 40, 40, 128, 16384, "6.7B"),
    ("CodeGemma-7B", 3072, 28, 16, 256, 8192, "1.9B"),
    ("aya-23-35B", 8192, 40, 64, 128, 8192, "5.4B"),
    ("SmolLM2-1.7B", 2048, 24, 32, 64, 8192, "0.8B"),
    ("SmolVLM", 2048, 24, 32, 64, 16384, "1.6B"),
    ("Phi-3-mini-128k", 3072, 32, 32, 96, 131072, "25.8B"),
    ("bitnet_b1_58-3B", 3200, 26, 32, 100, 2048, "0.3B"),
    ("OLMo-1B (July 2024)", 2048, 16, 16, 128, 4096, "0.3B"),
    ("OLMo-2-1124-7B, llava-NeXT-video-7B", 4096, 32, 32, 128, 4096, "1.1B"),
    ("OLMo-2-1124-13B, llava-v1.6-vicuna-13B", 5120, 40, 40, 128, 4096, "1.7B"),
    ("Chronos-Bolt-tiny", 256, 4, 4, 64, 512, "1M"),
    ("Chronos-Bolt-base, Flan-T5-base", 768, 12, 12, 64, 512, "9.4M"),
    ("Qwen2-Audio-7B", 4096, 32, 32, 128, 8192, "2.1B"),
    ("Vicuna-7B-v1.5-16k", 4096, 32, 32, 128, 16384, "4.3B"),
    ("Vicuna-13B-v1.5-16k", 5120, 40, 40, 128, 16384, "6.7B"),
    ("Flan-T5-XXL", 4096, 24, 64, 64, 512, "101M"),
    ("Whisper-tiny", 384, 4, 6, 64, SOURCE + OUTPUT, "6M"),
    ("Whisper-small", 768, 12, 12, 64, SOURCE + OUTPUT, "36M"),
    ("Whisper-large-v3", 1280, 32, 20, 64, SOURCE + OUTPUT, "160M"),
    ("GPT-2 XL", 1600, 48, 25, 64, 1024, "157M"),
)
"""Model, D, L, H, K and positions as its config publishes them, and the KV-cache that the paper prints."""


def slim() -> Iterator[Cell]:
    """Slim attention: the KV-caches of Table 1, the counts of Table 2, sections 6 and 7."""
    for model, D, L, H, K, positions, printed in SLIM_TABLE_1:
        numbers = sum(cache_numbers("dedup", decoder(D, L, H, K), 1, 1, 0, positions))
        yield Cell(f"KV-cache, {model}", printed, numbers / {"B": 1e9, "M": 1e6}[printed[-1]])
    for row, variant, products, reads in (("vanilla", "dedup", "2", "2"), ("optimised", "kcache", "33", "1")):
        sizes, n = decoder(4096, 1, 32, 128), 2048
        plan = same_for_all(PRESETS[variant], 1, "")
        work, empty = (step_work(plan, sizes, RunSize(B=1, M=1, N=0, T=t, itemsize=1), NOTHING)[-1] for t in (n, 0))
        yield Cell(f"{row}: multiplications / nd", products, (work.operations - empty.operations) / 2 / (n * 4096))
        yield Cell(f"{row}: reads / nd", reads, (work.bytes - empty.bytes) / (n * 4096))
    for model, D, K, H, aspect in (("CodeGemma-7B", 3072, 256, 16, "1.3"), ("T5-3B", 1024, 128, 32, "4")):
        kv, k, x = (cache_numbers(name, decoder(D, 1, H, K), 1, 1, 0, 512)[1] for name in ("dedup", "kcache", "xcache"))
        yield Cell(f"{model}: e / d", aspect, k / x)
        yield Cell(f"{model}: option 1 (k)", "2", kv / k)
    kv, x = (cache_numbers(name, decoder(1024, 1, 128, 128), 1, 1, 0, 512)[1] for name in ("dedup", "xcache"))
    yield Cell("T5-11B: option 2 (x)", "32", kv / x)
    for index, (model, sizes) in enumerate(WHISPER.items()):
        ours = whisper_figures(sizes)
        for row, cells in PRINTED.items():
            yield Cell(f"Whisper {model}: {row}", cells[index], ours[row])


PAPERS: dict[str, Callable[[], Iterator[Cell]]] = {"fastseq": fastseq, "el": el, "shazeer": shazeer, "slim": slim}
"""The papers by the name that the command takes."""


def main(
    papers: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(PAPERS)}; all by default.")] = None,
) -> None:
    """Print each cell of the papers' tables beside ours; those that differ are marked."""
    for name in papers or PAPERS:
        if name not in PAPERS:
            raise typer.BadParameter(f"the paper {name!r} is unknown; pass some of {', '.join(PAPERS)}")
        print(PAPERS[name].__doc__)
        for cell in PAPERS[name]():
            print(f"  {cell.name}: {cell.printed}, ours {cell.ours:,.4g}{'' if cell.agrees else '  (differs)'}")


if __name__ == "__main__":
    typer.run(main)
