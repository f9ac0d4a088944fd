"""Calls of the operators by four models, for the launch plans: their tensors' shapes and attributes, in float16."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tightbeam.plugins.tensorrt.native import Gpu, Plan, TensorAt, plan

__all__ = ["MODELS", "OpCall", "calls_of", "plan_of"]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class OpCall:
    """One call of an operator.

    Attributes
    ----------
    operator : str
        Name of the operator.
    inputs, outputs : dict
        Shapes of the tensors by name.
    attributes : dict
        Attributes by name.
    in_place : tuple of (str, str)
        Inputs, and the outputs that have their memory.
    """

    operator: str
    inputs: Shapes
    outputs: Shapes
    attributes: dict[str, float]
    in_place: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Model:
    """Sizes: M beams, H heads over G key heads of width K, N source positions, T tokens so far, of ``vocabulary``."""

    M: int
    H: int
    G: int
    K: int
    N: int
    T: int
    vocabulary: int
    causal: bool = False
    distance_bias: bool = False

    @property
    def D(self) -> int:
        """Width of the model."""
        return self.H * self.K


MODELS = {
    "BART-large": Model(4, 16, 16, 64, 1024, 60, 50265),
    "T5-base": Model(4, 12, 12, 64, 512, 60, 32128, distance_bias=True),
    "Whisper-large-v3": Model(5, 20, 20, 64, 1500, 100, 51866),
    "Llama-8B": Model(4, 32, 8, 128, 1024, 100, 128256, causal=True),
}


def calls_of(model: Model, B: int) -> list[OpCall]:
    """Every call that a layer or the search of a step makes, in any variant of the model, for B samples."""
    makers = (latent, source, beam, beam_latent, top_k, ngram)
    return [make(model, B) for make in makers]


def plan_of(call: OpCall, gpu: Gpu, float_type: str) -> Plan:
    """The C++ launch plan of a call, whose tensors lie at addresses that are aligned and never read.

    Raises TensorRTError if the call cannot be planned.
    """
    address = 1 << 20
    tensors: list[dict[str, TensorAt]] = []
    for shapes in (call.inputs, call.outputs):
        placed = {}
        for name, shape in shapes.items():
            placed[name] = TensorAt(shape, address)
            address += 256 + 8 * math.prod(shape) // 256 * 256
        tensors.append(placed)
    inputs, outputs = tensors
    outputs |= {output: inputs[name] for name, output in call.in_place}
    return plan(call.operator, float_type, inputs, outputs, call.attributes, gpu, 1 << 44)


def latent(model: Model, B: int) -> OpCall:
    """LatentAttention: EL's form (G = 1), or over a prompt's keys (rotated, by head)."""
    H, N, R = model.H, model.N, B * model.M
    G, K = (model.G, model.K) if model.causal else (1, model.D)
    inputs: Shapes = {"query": (R, H, K), "states": (B, N, G * K), "mask": (B, N)}
    outputs: Shapes = {"output": (R, H, G * K)}
    if model.causal:
        inputs |= {"cosines": (N, K // 2), "sines": (N, K // 2)}
        outputs |= {"lse": (R, H)}
    return OpCall("LatentAttention", inputs, outputs, {"scale": 0.125})


def source(model: Model, B: int) -> OpCall:
    """SourceAttention over keys and values, one copy a sample."""
    H, K, N, R = model.H, model.K, model.N, B * model.M
    rows = (B, model.G, N, K)
    inputs: Shapes = {"query": (R, H * K), "key": rows, "value": rows, "mask": (B, N)}
    return OpCall("SourceAttention", inputs, {"output": (R, H * K)}, {"scale": 0.125})


def _history(model: Model, B: int, K: int) -> Shapes:
    M, H, T, R = model.M, model.H, model.T, B * model.M
    inputs: Shapes = {"ancestry": (B, M, T), "lengths": (B,)}
    if model.causal:
        inputs |= {"cosines": (T + 2048, K // 2), "sines": (T + 2048, K // 2), "first_positions": (B,)}
        inputs |= {"prefix_lse": (R, H)}
    if model.distance_bias:
        inputs["distance_bias"] = (H, T + 4)
    return inputs


def beam(model: Model, B: int) -> OpCall:
    """BeamAttention."""
    H, G, K, R = model.H, model.G, model.K, B * model.M
    cache = (R, G, model.T + 4, K)
    inputs = _history(model, B, K)
    inputs |= {"projected": (R, (H + 2 * G) * K), "key_cache": cache, "value_cache": cache}
    if model.causal:
        inputs["prefix_output"] = (R, H * K)
    outputs: Shapes = {"output": (R, H * K), "key_cache_out": cache, "value_cache_out": cache}
    in_place = (("key_cache", "key_cache_out"), ("value_cache", "value_cache_out"))
    return OpCall("BeamAttention", inputs, outputs, {"scale": 0.125, "window": 0.0}, in_place)


def beam_latent(model: Model, B: int) -> OpCall:
    """BeamLatentAttention: the X form (G = 1), or K-only caches by head, rotated."""
    H, R = model.H, B * model.M
    G, K = (model.G, model.K) if model.causal else (1, model.D)
    cache = (R, G, model.T + 4, K)
    inputs = _history(model, B, K)
    inputs |= {"query": (R, H * K), "row": (R, G * K), "cache": cache}
    if model.causal:
        inputs["prefix_output"] = (R, H * G * K)
    outputs: Shapes = {"output": (R, H * G * K), "cache_out": cache}
    attributes = {"scale": 0.125, "window": 0.0}
    return OpCall("BeamLatentAttention", inputs, outputs, attributes, (("cache", "cache_out"),))


def top_k(model: Model, B: int) -> OpCall:
    """BeamTopK of 2 M candidates, nothing banned and no trie, as TensorRT calls it: its settings are on the device."""
    M, R, C = model.M, B * model.M, 2 * model.M
    inputs: Shapes = {
        "logits": (R, model.vocabulary),
        "beam_scores": (B, M),
        "history": (R, model.T),
        "lengths": (B,),
        "banned": (R, 0),
        "normalize": (),
        "repetition_penalty": (),
        "no_repeat_ngram_size": (),
        "trie_offsets": (3,),
        "trie_tokens": (0,),
        "trie_nodes": (R,),
    }
    return OpCall("BeamTopK", inputs, {"scores": (B, C), "beams": (B, C), "tokens": (B, C)}, {})


def ngram(model: Model, B: int) -> OpCall:
    """NGramBlock out of place."""
    R, scores = B * model.M, (B * model.M, model.vocabulary)
    inputs: Shapes = {"scores": scores, "history": (R, model.T), "lengths": (R,), "ngram_size": ()}
    return OpCall("NGramBlock", inputs, {"blocked": scores}, {})
