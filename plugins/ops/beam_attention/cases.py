"""Cases of BeamAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case, softcapped, softmax_with_lse

__all__ = [
    "attend_history",
    "cases",
    "exact",
    "history_attributes",
    "history_name",
    "own_history",
    "possible_ancestry",
    "random_case",
    "random_options",
    "write",
]


def possible_ancestry(generator: np.random.Generator, B: int, M: int, lengths: Array, T: int) -> Array:
    """An ancestry int32 [B, M, T] that a beam search could make: at each step every beam continues a random one."""
    ancestry = np.zeros((B, M, T), dtype=np.int32)
    for b in range(B):
        for t in range(int(lengths[b])):
            ancestry[b, :, :t] = ancestry[b, generator.integers(0, M, M), :t]
            ancestry[b, :, t] = np.arange(M)
    return ancestry


def random_options(
    generator: np.random.Generator,
    *,
    B: int,
    M: int,
    H: int,
    T_max: int,
    width: int,
    rotary: int = 0,
    shifted: bool = False,
    bias: bool = False,
    prefix: bool = False,
    row_bias: bool = False,
) -> dict[str, Array]:
    """The optional inputs of a case. ``width`` is the width of a row of ``prefix_output``."""
    options: dict[str, Array] = {}
    if rotary:
        first = generator.integers(0, 9, B).astype(np.int32)
        P = T_max + (int(first.max()) if shifted else 0)
        angles = np.outer(np.arange(P), 10.0 ** -np.arange(rotary // 2))
        options["cosines"], options["sines"] = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        if shifted:
            options["first_positions"] = first
    if bias:
        options["distance_bias"] = generator.standard_normal((H, T_max)).astype(np.float32)
    if prefix:
        options["prefix_output"] = generator.standard_normal((B * M, width)).astype(np.float32)
        options["prefix_lse"] = generator.standard_normal((B * M, H)).astype(np.float32) * np.float32(2)
        options["prefix_lse"][0, 0] = -np.inf  # another attention, all of whose positions are masked
    if row_bias:
        options["row_bias"] = generator.standard_normal((B * M, H, T_max)).astype(np.float32)
    return options


def history_name(sizes: str, seed: int, softcap: float, options: dict[str, Any]) -> str:
    """Name of a case: its sizes, its options and its seed."""
    flags = [name for name in ("shifted", "bias", "prefix", "row_bias", "scaled") if options.get(name)]
    flags += [f"softcap{softcap}"] * (softcap > 0)
    return "-".join([sizes, f"rotary{options.get('rotary', 0)}", *flags, f"seed{seed}"])


def random_case(
    seed: int,
    *,
    B: int,
    M: int,
    H: int,
    G: int,
    K: int,
    V: int,
    T: int,
    T_max: int,
    window: int = 0,
    spread: float = 1.0,
    lengths: Any = None,
    softcap: float = 0.0,
    **options: Any,
) -> Case:
    """Random numbers and a possible ancestry, with the ``options`` of ``random_options``. ``spread`` makes the softmax
    sharp."""
    generator = np.random.default_rng(seed)

    def numbers(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    counted = generator.integers(1, T + 1, B) if lengths is None else np.asarray(lengths)
    inputs: dict[str, Array] = {
        "projected": numbers(B * M, H * K + G * (K + V)) * np.float32(spread),
        "key_cache": numbers(B * M, G, T_max, K),
        "value_cache": numbers(B * M, G, T_max, V),
        "ancestry": possible_ancestry(generator, B, M, counted, T),
        "lengths": counted.astype(np.int32),
    }
    inputs |= random_options(generator, B=B, M=M, H=H, T_max=T_max, width=H * V, **options)
    name = history_name(f"B{B}-M{M}-H{H}-G{G}-K{K}-V{V}-T{T}of{T_max}-window{window}", seed, softcap, options)
    floats = ("projected", "key_cache", "value_cache", *({"prefix_output"} & inputs.keys()))
    return Case(name, inputs, history_attributes(K, window, softcap), floats)


def history_attributes(K: int, window: int, softcap: float) -> dict[str, float | int]:
    """The attributes of a case. A cap of 0 is left out, since a node with the attribute has another function."""
    return {"scale": K**-0.5, "window": window, **({"softcap": softcap} if softcap else {})}


def cases() -> list[Case]:
    """Odd and adversarial cases: MHA, GQA, MQA, each option alone, and all together."""
    return [
        random_case(0, B=1, M=1, H=1, G=1, K=1, V=1, T=1, T_max=1),
        random_case(1, B=2, M=4, H=4, G=4, K=64, V=64, T=30, T_max=41),
        random_case(2, B=3, M=2, H=6, G=2, K=6, V=10, T=9, T_max=9),
        random_case(3, B=1, M=5, H=8, G=1, K=32, V=32, T=70, T_max=80),
        random_case(4, B=2, M=3, H=4, G=4, K=16, V=16, T=20, T_max=25, window=1),
        random_case(5, B=2, M=3, H=4, G=2, K=16, V=16, T=40, T_max=45, window=7),
        random_case(6, B=2, M=2, H=4, G=4, K=16, V=8, T=20, T_max=21, rotary=16),
        random_case(7, B=2, M=2, H=4, G=2, K=16, V=16, T=20, T_max=21, rotary=6, shifted=True),
        random_case(8, B=2, M=4, H=4, G=4, K=12, V=12, T=33, T_max=40, bias=True),
        random_case(9, B=2, M=4, H=4, G=4, K=8, V=8, T=12, T_max=12, prefix=True),
        random_case(
            10,
            B=3,
            M=3,
            H=6,
            G=3,
            K=10,
            V=14,
            T=50,
            T_max=60,
            window=20,
            rotary=4,
            shifted=True,
            bias=True,
            prefix=True,
        ),
        random_case(11, B=1, M=4, H=2, G=2, K=64, V=64, T=300, T_max=310, spread=15.0, lengths=[300]),
        random_case(12, B=2, M=1, H=3, G=3, K=5, V=5, T=8, T_max=8, lengths=[1, 8]),
        random_case(13, B=2, M=3, H=4, G=4, K=12, V=12, T=9, T_max=11, row_bias=True),
        random_case(14, B=2, M=3, H=6, G=3, K=8, V=6, T=70, T_max=75, window=30, prefix=True, row_bias=True),
        random_case(15, B=2, M=3, H=4, G=2, K=16, V=16, T=20, T_max=21, spread=5.0, softcap=3.0),
        random_case(
            16,
            B=2,
            M=2,
            H=6,
            G=3,
            K=8,
            V=6,
            T=40,
            T_max=41,
            window=9,
            prefix=True,
            row_bias=True,
            spread=5.0,
            softcap=2.0,
        ),
    ]


def own_history(cache: Array, ancestry: Array) -> Array:
    """Each row's own history [R, G, T, width] in ``cache`` [R, G, T_max, width]."""
    B, M, T = ancestry.shape
    rows = (ancestry + np.arange(B)[:, None, None] * M).reshape(B * M, T)
    heads, positions = np.arange(cache.shape[1])[None, None, :], np.arange(T)[None, :, None]
    return np.asarray(cache[rows[:, :, None], heads, positions].swapaxes(1, 2))


def rotate(vectors: Array, angles_at: Array, case: Case) -> Array:
    """Rotate ``vectors`` [R, heads, X, K] by the tables' rows ``angles_at`` [R, X]."""
    cosines = case.inputs["cosines"].astype(vectors.dtype)[angles_at][:, None]  # [R, 1, X, rotary / 2]
    sines = case.inputs["sines"].astype(vectors.dtype)[angles_at][:, None]
    half = cosines.shape[-1]
    one, two, rest = vectors[..., :half], vectors[..., half : 2 * half], vectors[..., 2 * half :]
    return np.concatenate([one * cosines - two * sines, two * cosines + one * sines, rest], axis=-1)


def attend_history(case: Case, query: Array, keys: Array, values: Array, scales: Array | None = None) -> Array:
    """Attention [R, H, width] of ``query`` [R, H, K] over each row's own history.

    The history is ``keys`` [R, G, T, K] and ``values`` [R, H, T, width]; ``scales`` [R, G, T, 1] are factors of the
    keys' scores.
    """
    dtype = query.dtype.type
    ancestry, lengths = case.inputs["ancestry"], case.inputs["lengths"]
    B, M, T = ancestry.shape
    R, H, K = query.shape
    G = keys.shape[1]
    newest = np.repeat(lengths.astype(np.int64) - 1, M)[:, None]  # [R, 1]
    positions = np.arange(T)[None]
    if "cosines" in case.inputs:
        first = np.repeat(case.inputs.get("first_positions", np.zeros(B, dtype=np.int64)), M)[:, None]
        in_table = np.minimum(
            first + positions, len(case.inputs["cosines"]) - 1
        )  # positions beyond the length do not count
        query = rotate(query[:, :, None], first + newest, case)[:, :, 0]
        keys = rotate(keys, in_table, case)
    scores = np.einsum("rgqk,rgtk->rgqt", query.reshape(R, G, H // G, K), keys).reshape(R, H, T)
    scores = scores * dtype(case.attributes["scale"])
    if scales is not None:
        scores = scores * np.repeat(scales[..., 0], H // G, axis=1)
    scores = softcapped(scores, case)
    distance = newest - positions  # [R, T]
    if "distance_bias" in case.inputs:
        bias = case.inputs["distance_bias"].astype(dtype)
        scores = scores + bias[:, np.maximum(distance, 0)].transpose(1, 0, 2)
    if "row_bias" in case.inputs:
        index = np.broadcast_to(np.maximum(distance, 0)[:, None], scores.shape)
        scores = scores + np.take_along_axis(case.inputs["row_bias"].astype(dtype), index, axis=2)
    window = case.attributes["window"]
    seen = (distance >= 0) & ((distance < window) | (window == 0))
    weights, lse = softmax_with_lse(np.where(seen[:, None], scores, dtype(-np.inf)))
    output = np.einsum("rht,rhtv->rhv", weights, values)
    if "prefix_lse" in case.inputs:
        lses = np.stack([lse, case.inputs["prefix_lse"].astype(dtype)], axis=-1)
        shares, _ = softmax_with_lse(lses)  # [R, H, 2]
        prefix = case.inputs["prefix_output"].astype(dtype).reshape(output.shape)
        output = output * shares[..., :1] + prefix * shares[..., 1:]
    return np.asarray(output)


def write(cache: Array, new: Array, lengths: Array, M: int) -> Array:
    """A copy of ``cache`` [R, G, T_max, width] with ``new`` [R, G, width] at each row's newest position."""
    written = cache.copy()
    written[np.arange(len(cache)), :, np.repeat(lengths, M) - 1] = new
    return written


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """Outputs by the definition, calculated in ``dtype``."""
    projected, key_cache, value_cache = (
        case.inputs[name].astype(dtype) for name in ("projected", "key_cache", "value_cache")
    )
    ancestry, lengths = case.inputs["ancestry"], case.inputs["lengths"]
    R, G, _, K = key_cache.shape
    V = value_cache.shape[3]
    H = (projected.shape[1] - G * (K + V)) // K
    query, key, value = np.split(projected, [H * K, H * K + G * K], axis=1)
    M = ancestry.shape[1]
    key_cache = write(key_cache, key.reshape(R, G, K), lengths, M)
    value_cache = write(value_cache, value.reshape(R, G, V), lengths, M)
    values = np.repeat(own_history(value_cache, ancestry), H // G, axis=1)
    output = attend_history(case, query.reshape(R, H, K), own_history(key_cache, ancestry), values)
    return {"output": output.reshape(R, H * V), "key_cache_out": key_cache, "value_cache_out": value_cache}
