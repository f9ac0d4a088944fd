"""Calls of the operators by the models that matter, with the bytes that any kernel must move.

Bytes are those of ``attention.py`` and ``search.py`` of ``tools/gpu/_kernels``: every number comes from the device's
memory once and every result goes there once. All models are in float16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["MODELS", "OpCall", "SharedRows", "calls_of", "shared_rows"]

Shape = tuple[int, ...]
FLOAT = 2
"""Bytes of a float16."""


@dataclass(frozen=True)
class OpCall:
    """One call. ``sizes``: letters of the operator, for the loops of its kernels, and ``named_rows``: different rows
    that a sample's histories name before the newest position; ``nbytes``, ``flops``: the floor's; ``in_place``: inputs
    and the outputs that have their memory.
    """

    operator: str
    label: str
    inputs: dict[str, Shape]
    outputs: dict[str, Shape]
    attributes: dict[str, float]
    sizes: dict[str, int]
    nbytes: float
    flops: float = 0.0
    in_place: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SharedRows:
    """Different (row, position) pairs that the histories of ``M`` beams name, of T positions each, in one sample."""

    apart: int
    of_search: float


def shared_rows(M: int, T: int) -> SharedRows:
    """Expected rows when each beam continues a random one at every step, but for the newest position.

    A position ``back`` steps before the newest is named by the distinct ancestors of M beams: each step maps the
    distinct ones at random into M, which leaves M (1 - (1 - 1/M)^k) of k on average.
    """
    distinct, total = float(M), 0.0
    for _ in range(T - 1):
        distinct = M * (1 - (1 - 1 / M) ** distinct)
        total += distinct
    return SharedRows(M * (T - 1), total)


@dataclass(frozen=True)
class Model:
    """Sizes: M beams, H heads over G key heads of width K, N source positions, T tokens so far, of ``vocabulary``."""

    name: str
    M: int
    H: int
    G: int
    K: int
    N: int
    T: int
    vocabulary: int
    causal: bool = False
    distance_bias: bool = False
    layers: int = field(default=12)

    @property
    def D(self) -> int:
        return self.H * self.K


MODELS = {
    model.name: model
    for model in (
        Model("BART-large", 4, 16, 16, 64, 1024, 60, 50265),
        Model("T5-base", 4, 12, 12, 64, 512, 60, 32128, distance_bias=True),
        Model("Whisper-large-v3", 5, 20, 20, 64, 1500, 100, 51866, layers=32),
        Model("Llama-8B", 4, 32, 8, 128, 1024, 100, 128256, causal=True, layers=32),
    )
}


def calls_of(model: Model, B: int) -> list[OpCall]:
    """Every call that a layer or the search of a step makes in the variants of the model."""
    if model.causal:
        kinds = [latent(model, B), beam_latent(model, B), source(model, B), beam(model, B, shared=True)]
    else:
        kinds = [
            *(latent(model, B), source(model, B), beam(model, B, shared=False), beam(model, B, shared=True)),
            beam_latent(model, B),
        ]
    return [*kinds, top_k(model, B), ngram(model, B)]


def latent(model: Model, B: int) -> OpCall:
    """LatentAttention: EL's form (G = 1), or over a prompt's keys (rotated, by head)."""
    M, H, N, R = model.M, model.H, model.N, B * model.M
    G, K = (model.G, model.K) if model.causal else (1, model.D)
    width = G * K
    inputs: dict[str, Shape] = {"query": (R, H, K), "states": (B, N, width), "mask": (B, N)}
    outputs: dict[str, Shape] = {"output": (R, H, width)}
    if model.causal:
        inputs |= {"cosines": (N, K // 2), "sines": (N, K // 2)}
        outputs |= {"lse": (R, H)}
    nbytes = B * N * (width * FLOAT + 1) + R * H * (K + width) * FLOAT
    sizes = {"B": B, "M": M, "H": H, "G": G, "K": K, "N": N, "rotary": K if model.causal else 0}
    flops = 2.0 * R * H * N * (K + width)
    label = "keys of a prompt" if model.causal else "EL"
    return OpCall("LatentAttention", label, inputs, outputs, {"scale": 0.125}, sizes, nbytes, flops)


def source(model: Model, B: int) -> OpCall:
    """SourceAttention over keys and values, one copy a sample."""
    M, H, G, K, N, R = model.M, model.H, model.G, model.K, model.N, B * model.M
    rows = (B, G, N, K)
    inputs: dict[str, Shape] = {"query": (R, H * K), "key": rows, "value": rows, "mask": (B, N)}
    nbytes = B * N * (2 * G * K * FLOAT + 1) + 2 * R * H * K * FLOAT
    sizes = {"B": B, "M": M, "H": H, "G": G, "K": K, "V": K, "N": N}
    flops = 4.0 * R * H * N * K
    outputs: dict[str, Shape] = {"output": (R, H * K)}
    return OpCall("SourceAttention", "keys and values", inputs, outputs, {"scale": 0.125}, sizes, nbytes, flops)


def _history(model: Model, B: int, K: int) -> tuple[dict[str, Shape], dict[str, int]]:
    M, H, T, R = model.M, model.H, model.T, B * model.M
    inputs: dict[str, Shape] = {"ancestry": (B, M, T), "lengths": (B,)}
    rotary = 0
    if model.causal:
        rotary = K
        inputs |= {"cosines": (T + 2048, K // 2), "sines": (T + 2048, K // 2), "first_positions": (B,)}
        inputs |= {"prefix_lse": (R, H)}
    if model.distance_bias:
        inputs["distance_bias"] = (H, T + 4)
    return inputs, {"B": B, "M": M, "H": H, "T": T, "T_max": T + 4, "rotary": rotary}


def beam(model: Model, B: int, *, shared: bool) -> OpCall:
    """BeamAttention; ``shared``: histories of a search, else each beam's own."""
    M, H, G, K, T, R = model.M, model.H, model.G, model.K, model.T, B * model.M
    inputs, sizes = _history(model, B, K)
    cache = (R, G, T + 4, K)
    inputs |= {"projected": (R, (H + 2 * G) * K), "key_cache": cache, "value_cache": cache}
    if model.causal:
        inputs["prefix_output"] = (R, H * K)
    rows = shared_rows(M, T)
    kept = B * (rows.of_search if shared else rows.apart)
    nbytes = 2 * kept * G * K * FLOAT + 4 * R * T + R * FLOAT * K * (2 * H + 4 * G)
    outputs: dict[str, Shape] = {"output": (R, H * K), "key_cache_out": cache, "value_cache_out": cache}
    sizes = {**sizes, "G": G, "K": K, "V": K, "named_rows": math.ceil(kept / B)}
    alias = (("key_cache", "key_cache_out"), ("value_cache", "value_cache_out"))
    label = "histories of a search" if shared else "histories apart"
    attributes = {"scale": 0.125, "window": 0.0}
    flops = 4.0 * R * H * T * K
    return OpCall("BeamAttention", label, inputs, outputs, attributes, sizes, nbytes, flops, alias)


def beam_latent(model: Model, B: int) -> OpCall:
    """BeamLatentAttention over a search's histories: the X form (G = 1), or K-only caches by head, rotated."""
    M, H, T, R = model.M, model.H, model.T, B * model.M
    G, K = (model.G, model.K) if model.causal else (1, model.D)
    inputs, sizes = _history(model, B, K)
    cache, width = (R, G, T + 4, K), G * K
    inputs |= {"query": (R, H * K), "row": (R, width), "cache": cache}
    if model.causal:
        inputs["prefix_output"] = (R, H * width)
    nbytes = FLOAT * (B * shared_rows(M, T).of_search * width + R * (H * K + 2 * width + H * width)) + 4 * R * T
    outputs: dict[str, Shape] = {"output": (R, H * width), "cache_out": cache}
    sizes = {**sizes, "G": G, "K": K}
    attributes = {"scale": 0.125, "window": 0.0}
    flops = 2.0 * R * H * T * (K + width)
    label = "K form" if model.causal else "X form"
    alias = (("cache", "cache_out"),)
    return OpCall("BeamLatentAttention", label, inputs, outputs, attributes, sizes, nbytes, flops, alias)


def top_k(model: Model, B: int) -> OpCall:
    """BeamTopK of 2 M candidates, nothing banned and no trie, as TensorRT calls it: its settings are on the device."""
    M, T, R, C = model.M, model.T, B * model.M, 2 * model.M
    inputs: dict[str, Shape] = {
        "logits": (R, model.vocabulary),
        "beam_scores": (B, M),
        "history": (R, T),
        "lengths": (B,),
        "banned": (R, 0),
        "normalize": (),
        "repetition_penalty": (),
        "no_repeat_ngram_size": (),
        "trie_offsets": (3,),
        "trie_tokens": (0,),
        "trie_nodes": (R,),
    }
    outputs: dict[str, Shape] = {"scores": (B, C), "beams": (B, C), "tokens": (B, C)}
    nbytes = R * (model.vocabulary * FLOAT + 2 * 20)
    sizes = {"B": B, "M": M, "T": T, "C": C, "P": 0, "Y": 0, "vocabulary": model.vocabulary}
    return OpCall("BeamTopK", "settings on the device", inputs, outputs, {}, sizes, nbytes)


def ngram(model: Model, B: int) -> OpCall:
    """NGramBlock out of place."""
    R, T = B * model.M, model.T
    inputs: dict[str, Shape] = {
        "scores": (R, model.vocabulary),
        "history": (R, T),
        "lengths": (R,),
        "ngram_size": (),
    }
    outputs: dict[str, Shape] = {"blocked": (R, model.vocabulary)}
    nbytes = R * (2 * model.vocabulary * FLOAT + 8 * T + 4)
    sizes = {"R": R, "T": T, "vocabulary": model.vocabulary}
    return OpCall("NGramBlock", "out of place", inputs, outputs, {}, sizes, nbytes)
