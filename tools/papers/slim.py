"""Slim attention (Graef 2025): cache sizes, reads and parameters of its tables, by our formulas and cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightbeam.graph_passes import PRESETS, RunSize, Sizes, same_for_all
from tightbeam.graph_passes.caches.bytes import source_bytes
from tightbeam.graph_passes.caches.cost import WeightCounts, step_work
from tools.papers.figures import Figure, PaperTable

__all__ = [
    "WHISPER",
    "Whisper",
    "slim_cache_sizes",
    "slim_chips",
    "slim_intensity",
    "slim_long_context",
    "slim_not_square",
    "slim_whisper",
    "slim_whisper_states_read",
]


def shape(D: int, L: int, H: int, K: int) -> Sizes:
    """Sizes of a decoder with as many key heads as query heads; lengths and vocabularies, which no figure needs, 1."""
    return Sizes(D=D, H=H, G=H, K=K, V=K, L=L, vocabulary=1, source_vocabulary=1, max_source=1, max_target=1)


@dataclass(frozen=True)
class Whisper:
    """Sizes of one Whisper model as published: width, layers, heads of encoder and decoder, feed-forward width."""

    D: int
    L: int
    H: int
    d_ff: int

    @property
    def sizes(self) -> Sizes:
        return shape(self.D, self.L, self.H, self.D // self.H)

    @property
    def weights(self) -> WeightCounts:
        """Numbers that a step multiplies: d vocabulary + L (6 d^2 + 2 d d_ff). No encoder's."""
        per_layer = 6 * self.D**2 + 2 * self.D * self.d_ff
        return WeightCounts(0, self.D * VOCABULARY + self.L * per_layer)


WHISPER = {
    "tiny": Whisper(384, 4, 6, 1536),
    "base": Whisper(512, 6, 8, 2048),
    "small": Whisper(768, 12, 12, 3072),
    "medium": Whisper(1024, 24, 16, 4096),
    "large": Whisper(1280, 32, 20, 5120),
}
SOURCE, OUTPUT, VOCABULARY = 1500, 448, 51865
MILLION = 1e6
LARGE_BATCH = 64

VARIANTS = {"Baseline": "dedup", "Option 1": "kcache", "Option 2": "slim"}
"""The paper's names; its baseline has no beams, and `dedup` without beams is what it counts."""

PRINTED: dict[str, tuple[str, ...]] = {
    "Params": ("38M", "73M", "242M", "764M", "1.5B"),
    "Encoder E-cache": ("0.6", "0.8", "1.2", "1.5", "1.9"),
    "Cross KV-cache": ("4.6", "9.2", "27.6", "73.7", "122.9"),
    "Self KV-cache": ("1.4", "2.8", "8.3", "22.0", "36.7"),
    "Baseline cache": ("6.0", "12.0", "35.9", "95.7", "159.6"),
    "Option 1 cache": ("3.0", "6.0", "18.0", "47.9", "79.8"),
    "Option 2 cache": ("0.7", "1.4", "4.1", "11.0", "18.4"),
    "Option 2 savings": ("8.7x", "8.7x", "8.7x", "8.7x", "8.7x"),
    "Baseline params": ("28.2", "48.6", "138.9", "405.4", "800.4"),
    "Option 1 params": ("28.8", "50.1", "146.0", "430.6", "852.8"),
    "Option 2 params": ("29.4", "51.7", "153.1", "455.8", "905.2"),
    "Baseline reads, batch 1": ("34.2", "60.5", "174.8", "501.2", "960.0"),
    "Option 1 reads, batch 1": ("31.8", "56.1", "164.0", "478.5", "932.6"),
    "Option 2 reads, batch 1": ("30.0", "53.1", "157.2", "466.8", "923.6"),
    "Option 1 speedup, batch 1": ("1.08x", "1.08x", "1.07x", "1.05x", "1.03x"),
    "Option 2 speedup, batch 1": ("1.14x", "1.14x", "1.11x", "1.07x", "1.04x"),
    "Baseline reads, batch 64": ("6.4", "12.7", "38.1", "102.1", "172.1"),
    "Option 1 reads, batch 64": ("3.4", "6.8", "20.2", "54.6", "93.1"),
    "Option 2 reads, batch 64": ("1.1", "2.2", "6.5", "18.1", "32.5"),
    "Option 1 speedup, batch 64": ("1.9x", "1.9x", "1.9x", "1.9x", "1.8x"),
    "Option 2 speedup, batch 64": ("5.6x", "5.8x", "5.8x", "5.6x", "5.3x"),
}
"""Row -> the cells of tiny, base, small, medium and large; millions."""


def reads(model: Whisper, variant: str, B: int, *, states_on_chip: bool) -> float:
    """Numbers read for a token of each of B samples after OUTPUT tokens, by the cost model, for one sample.

    ``states_on_chip``: without the encoder's output, which the paper takes to stay in on-chip memory. Our cost model
    reads it in every layer.
    """
    plan = same_for_all(PRESETS[variant], model.L, "")
    run = RunSize(B=B, M=1, N=SOURCE, T=OUTPUT, itemsize=1)
    numbers = sum(work.bytes for work in step_work(plan, model.sizes, run, model.weights))
    if states_on_chip:
        numbers -= sum(source_bytes([layer.source], model.sizes, run) for layer in plan if layer.source == "states")
    return numbers / B


def parameters(model: Whisper, variant: str) -> int:
    """Weights that a step of a variant multiplies; without a cache they are all that a step reads."""
    plan = same_for_all(PRESETS[variant], model.L, "")
    empty = RunSize(B=1, M=1, N=0, T=0, itemsize=1)
    return sum(work.bytes for work in step_work(plan, model.sizes, empty, model.weights))


def whisper_figures(model: Whisper) -> dict[str, float]:
    """Our figure for every row of ``PRINTED`` but "Params"."""
    sizes, run = model.sizes, RunSize(B=1, M=1, N=SOURCE, T=OUTPUT, itemsize=1)
    kept = {name: PRESETS[variant].cache_bytes(sizes, run) for name, variant in VARIANTS.items()}
    on_chip = source_bytes(["states"] * model.L, sizes, run)
    caches = {name: sum(both) - (on_chip if name == "Option 2" else 0) for name, both in kept.items()}
    figures: dict[str, float] = {
        "Encoder E-cache": on_chip / MILLION,
        "Cross KV-cache": kept["Baseline"][0] / MILLION,
        "Self KV-cache": kept["Baseline"][1] / MILLION,
        "Option 2 savings": caches["Baseline"] / caches["Option 2"],
    }
    for name, variant in VARIANTS.items():
        figures[f"{name} cache"] = caches[name] / MILLION
        figures[f"{name} params"] = parameters(model, variant) / MILLION
        for B in (1, LARGE_BATCH):
            figures[f"{name} reads, batch {B}"] = reads(model, variant, B, states_on_chip=True) / MILLION
    for name in ("Option 1", "Option 2"):
        for B in (1, LARGE_BATCH):
            row = f"reads, batch {B}"
            figures[f"{name} speedup, batch {B}"] = figures[f"Baseline {row}"] / figures[f"{name} {row}"]
    return figures


def all_parameters(model: Whisper) -> int:
    """Numbers in all weights, as transformers builds the model (on no device: nothing is allocated)."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=model.D,
        encoder_layers=model.L,
        decoder_layers=model.L,
        encoder_attention_heads=model.H,
        decoder_attention_heads=model.H,
        encoder_ffn_dim=model.d_ff,
        decoder_ffn_dim=model.d_ff,
        vocab_size=VOCABULARY,
        max_source_positions=SOURCE,
        max_target_positions=OUTPUT,
    )
    with torch.device("meta"):
        whisper: Any = WhisperForConditionalGeneration(config)
    return int(whisper.num_parameters())


def slim_whisper() -> PaperTable:
    """Section 7's table of the five Whisper models, row by row."""
    ours: dict[str, dict[str, float]] = {}
    for name, model in WHISPER.items():
        ours[name] = whisper_figures(model)
        ours[name]["Params"] = all_parameters(model) / (1e9 if name == "large" else MILLION)
    figures = [
        Figure(row, name, printed, ours[name][row])
        for row, cells in PRINTED.items()
        for name, printed in zip(WHISPER, cells, strict=True)
    ]
    return PaperTable(
        "Slim attention, section 7: Whisper, millions of numbers (source of 1,500, output of 448)",
        tuple(figures),
        (
            "Caches and params are `dedup` without beams, `kcache` and `slim` of our formulas; reads are our cost "
            "model's, less the encoder's output, which the paper takes to stay on the chip.",
        ),
    )


def slim_whisper_states_read() -> PaperTable:
    """Option 2 where the encoder's output counts: as memory once, as reads once in every layer."""
    figures = []
    run = RunSize(B=1, M=1, N=SOURCE, T=OUTPUT, itemsize=1)
    for name, model in WHISPER.items():
        kept = {variant: sum(PRESETS[variant].cache_bytes(model.sizes, run)) for variant in ("dedup", "slim")}
        figures.append(Figure("Option 2 savings, E-cache kept", name, "8.7x", kept["dedup"] / kept["slim"]))
        for B, printed in (
            (1, PRINTED["Option 2 speedup, batch 1"]),
            (LARGE_BATCH, PRINTED["Option 2 speedup, batch 64"]),
        ):
            both = [reads(model, variant, B, states_on_chip=False) for variant in ("dedup", "slim")]
            row = f"Option 2 speedup, batch {B}, E-cache read"
            figures.append(Figure(row, name, printed[list(WHISPER).index(name)], both[0] / both[1]))
    return PaperTable(
        "Slim attention, section 7: the same without on-chip memory for the encoder's output",
        tuple(figures),
        (
            "Read from memory in every layer, the encoder's output costs as much as the keys of option 1: the speed-up "
            "over 5x at batch 64 is that of a machine that holds 64 encoder outputs on its chip.",
        ),
    )


@dataclass(frozen=True)
class Listed:
    """A row of Table 1. ``damaged``: fields that the text extraction lost, taken from the model's own config."""

    model: str
    D: int
    L: int
    H: int
    K: int
    source: int
    output: int
    printed: str
    damaged: str = ""


K = 1024
LISTED = (
    Listed("CodeLlama-7B", 4096, 32, 32, 128, 0, 16 * K, "4.3B", "h"),
    Listed("CodeLlama-13B", 5120, 40, 40, 128, 0, 16 * K, "6.7B", "h, d_k, context"),
    Listed("CodeGemma-7B", 3072, 28, 16, 256, 0, 8 * K, "1.9B", "context"),
    Listed("aya-23-35B", 8192, 40, 64, 128, 0, 8 * K, "5.4B"),
    Listed("SmolLM2-1.7B", 2048, 24, 32, 64, 0, 8 * K, "0.8B", "context"),
    Listed("SmolVLM", 2048, 24, 32, 64, 0, 16 * K, "1.6B", "d, d_k"),
    Listed("Phi-3-mini-128k", 3072, 32, 32, 96, 0, 128 * K, "25.8B", "h"),
    Listed("bitnet_b1_58-3B", 3200, 26, 32, 100, 0, 2 * K, "0.3B"),
    Listed("OLMo-1B", 2048, 16, 16, 128, 0, 4 * K, "0.3B", "d, h, d_k, context"),
    Listed("OLMo-2-1124-7B", 4096, 32, 32, 128, 0, 4 * K, "1.1B", "h"),
    Listed("OLMo-2-1124-13B", 5120, 40, 40, 128, 0, 4 * K, "1.7B", "h, d_k, context"),
    Listed("Chronos-Bolt-tiny", 256, 4, 4, 64, 0, 512, "1M", "h"),
    Listed("Chronos-Bolt-base", 768, 12, 12, 64, 0, 512, "9.4M", "h, d_k"),
    Listed("Qwen2-Audio-7B", 4096, 32, 32, 128, 0, 8 * K, "2.1B", "h, d_k"),
    Listed("llava-NeXT-video-7B", 4096, 32, 32, 128, 0, 4 * K, "1.1B", "d, d_k"),
    Listed("llava-v1.6-vicuna-13B", 5120, 40, 40, 128, 0, 4 * K, "1.7B", "h, context"),
    Listed("Vicuna-7B-v1.5-16k", 4096, 32, 32, 128, 0, 16 * K, "4.3B", "h, d_k"),
    Listed("Vicuna-13B-v1.5-16k", 5120, 40, 40, 128, 0, 16 * K, "6.7B", "h, d_k, context"),
    Listed("Flan-T5-base", 768, 12, 12, 64, 0, 512, "9.4M", "h, d_k"),
    Listed("Flan-T5-XXL", 4096, 24, 64, 64, 0, 512, "101M"),
    Listed("Whisper-tiny", 384, 4, 6, 64, SOURCE, OUTPUT, "6M", "d_k"),
    Listed("Whisper-small", 768, 12, 12, 64, SOURCE, OUTPUT, "36M", "h, d_k, context"),
    Listed("Whisper-large-v3", 1280, 32, 20, 64, SOURCE, OUTPUT, "160M", "layers, d_k, context"),
    Listed("GPT-2 XL", 1600, 48, 25, 64, 0, K, "157M", "name, d_k"),
)
UNITS = {"B": 1e9, "M": 1e6}


def slim_cache_sizes() -> PaperTable:
    """Table 1: keys and values of each model at its longest context, in numbers."""
    figures = []
    for listed in LISTED:
        run = RunSize(B=1, M=1, N=listed.source, T=listed.output, itemsize=1)
        numbers = sum(PRESETS["dedup"].cache_bytes(shape(listed.D, listed.L, listed.H, listed.K), run))
        row = f"{listed.model} ({listed.damaged} from its config)" if listed.damaged else listed.model
        figures.append(Figure(row, "KV-cache", listed.printed, numbers / UNITS[listed.printed[-1]]))
    return PaperTable(
        "Slim attention, Table 1: 2 h d_k layers context",
        tuple(figures),
        (
            "Behind a name: cells that our copy of the paper has lost, filled in from the model's published config.",
            "OLMo-1B prints 0.3B, which is right for the 4,096 positions of its July 2024 release; the first release "
            "has 2,048, and would need 0.13B.",
        ),
    )


def slim_long_context() -> PaperTable:
    """The introduction's Phi-3-mini-128k at a byte a number: memory, and the speed-up of a step that reads it all."""
    phi, parameters_gb = shape(3072, 32, 32, 96), 3.8
    kept = {
        name: PRESETS[name].cache_bytes(phi, RunSize(B=1, M=1, N=0, T=128 * K, itemsize=1))[1] / 1e9
        for name in ("dedup", "kcache")
    }

    def faster(B: int) -> float:
        return (B * kept["dedup"] + parameters_gb) / (B * kept["kcache"] + parameters_gb)

    figures = (
        Figure("KV-cache, GB", "Phi-3-mini-128k", "25", kept["dedup"]),
        Figure("K-cache, GB", "Phi-3-mini-128k", "12.5", kept["kcache"]),
        Figure("speed-up at the last token, batch 1", "Phi-3-mini-128k", "1.8x", faster(1)),
        Figure("speed-up at the last token, batch 16", "Phi-3-mini-128k", "2x", faster(16)),
    )
    return PaperTable(
        "Slim attention, introduction: Phi-3-mini-128k, 3.8 GB of parameters",
        figures,
        ("The text says 25 GB where Table 1 has 25.8B numbers of one byte; the speed-ups are the same.",),
    )


def slim_not_square() -> PaperTable:
    """Section 6: cache reduction of the K-cache, 2, and of the X-cache, 2 e / d."""
    figures = []
    for model, D, K_, H, aspect, by_x in (
        ("CodeGemma-7B", 3072, 256, 16, "1.3", ""),
        ("T5-3B", 1024, 128, 32, "4", ""),
        ("T5-11B", 1024, 128, 128, "16", "32"),
    ):
        sizes, run = shape(D, 1, H, K_), RunSize(B=1, M=1, N=0, T=512, itemsize=1)
        kv, k, x = (PRESETS[name].cache_bytes(sizes, run)[1] for name in ("dedup", "kcache", "xcache"))
        figures += [
            Figure(model, "e / d", aspect, k / x),
            Figure(model, "Option 1 (k)", "2", kv / k),
        ]
        if by_x:
            figures.append(Figure(model, "Option 2 (x)", by_x, kv / x))
    return PaperTable(
        "Slim attention, section 6: cache reduction with non-square weights",
        tuple(figures),
        (
            "Option 2 is 2 e / d: 2.7 for CodeGemma-7B and 8 for T5-3B, which the paper does not print. CodeGemma "
            "rotates its keys (RoPE), so option 2 is none for it, in the paper and here.",
        ),
    )


def slim_intensity() -> PaperTable:
    """Table 2: multiplications and reads of attention for a token and layer, by the cost model, in units of n d."""
    D, H, n = 4096, 32, 2048
    sizes, figures = shape(D, 1, H, D // H), []
    for row, variant, compute, read, intensity in (
        ("vanilla, Fig. 2(b)", "dedup", "2", "2", "1"),
        ("optimised, Fig. 3(c)", "kcache", f"{H + 1}", "1", f"{H + 1}"),
    ):
        plan = same_for_all(PRESETS[variant], 1, "")
        work, empty = (
            step_work(plan, sizes, RunSize(B=1, M=1, N=0, T=t, itemsize=1), WeightCounts(0, 0))[-1] for t in (n, 0)
        )
        multiplications = (work.operations - empty.operations) / 2 / (n * D)
        numbers = (work.bytes - empty.bytes) / (n * D)
        figures += [
            Figure(row, "compute / nd", compute, multiplications),
            Figure(row, "reads / nd", read, numbers),
            Figure(row, "intensity", intensity, multiplications / numbers),
        ]
    return PaperTable(
        f"Slim attention, Table 2: attention over n positions, for a token and layer (d = {D:,}, h = {H})",
        tuple(figures),
        ("Our K-only variants always take option 2, Fig. 3(c): the values are projected after the softmax.",),
    )


CHIPS = {
    "Rockchip RK3588": (6, 19, "316"),
    "Apple A18": (35, 60, "583"),
    "Apple M4 Max": (38, 546, "70"),
    "Google TPU v4": (275, 1200, "229"),
    "Google TPU v5p": (918, 2765, "332"),
    "NVIDIA H200": (1980, 4800, "413"),
    "NVIDIA B200": (4500, 8000, "563"),
}
"""TOPS (int8), GB/s, operations a byte, as printed in Table 3."""


def slim_chips() -> PaperTable:
    """Table 3: operations a byte from the two numbers beside it."""
    figures = tuple(
        Figure(chip, "operations a byte", printed, 1e3 * tops / bandwidth)
        for chip, (tops, bandwidth, printed) in CHIPS.items()
    )
    return PaperTable("Slim attention, Table 3: arithmetic intensity of chips, from its own cells", figures)
