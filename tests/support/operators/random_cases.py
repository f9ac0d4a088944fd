"""Cases with sizes drawn from a seed, odd ones among them, and cases as long as real ones get."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.operators.cases import MODULES
from tightbeam.plugins.ops._case import Case

__all__ = ["LONG", "SEED", "fresh_case", "repeatable"]

VARIABLE = "TIGHTBEAM_SEED"
SEED = int(os.environ.get(VARIABLE) or secrets.randbits(31))
"""Another one in each run; the environment variable repeats one."""
FEWEST = 64
"""Numbers of an output: of fewer, the ratio of two errors is a matter of luck."""


@contextmanager
def repeatable() -> Iterator[None]:
    """Add a note to an exception: the environment variable that repeats the run."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{VARIABLE}={SEED} in the environment repeats this run")
        raise


def fresh_case(name: str, index: int, most: int) -> Case:
    """The case number ``index`` of this run. ``most``: products of one attention, or scores of a row."""
    generator = random.Random(f"{SEED} {name} {index}")
    sizes = DRAWS[name](generator, most)
    while sizes is None:
        sizes = DRAWS[name](generator, most)
    return MODULES[name].random_case(generator.getrandbits(31), **sizes)  # type: ignore[no-any-return]


def _heads(generator: random.Random) -> dict[str, int]:
    G = generator.choice([1, 1, 2, 3, 4, 8])
    sizes = {"G": G, "H": G * generator.choice([1, 1, 2, 3, 4, 8])}
    return {**sizes, "B": generator.randint(1, 5), "M": generator.randint(1, 6)}


def _length(generator: random.Random, products_of_one: int, most: int, longest: int) -> int:
    return generator.randint(1, max(1, min(longest, most // products_of_one)))


def _source_attention(generator: random.Random, most: int) -> dict[str, Any] | None:
    sizes = _heads(generator)
    R, H = sizes["B"] * sizes["M"], sizes["H"]
    K, V = (generator.choice([generator.randint(1, 150), 8 * generator.randint(1, 16)]) for _ in range(2))
    N = _length(generator, R * H * max(K, V), most, 2000)
    if R * H * V < FEWEST:
        return None
    masked, spread = generator.random() < 0.7, generator.choice([1.0, 1.0, 5.0, 20.0])
    return {**sizes, **_scores(generator), "K": K, "V": V, "N": N, "masked": masked, "spread": spread}


def _scores(generator: random.Random) -> dict[str, Any]:
    """A cap of the scores, and biases by position, in some cases."""
    capped = {"softcap": generator.choice([1.0, 7.0])} if generator.random() < 0.2 else {}
    return {**capped, "biased": generator.random() < 0.2}


def _latent_attention(generator: random.Random, most: int) -> dict[str, Any] | None:
    sizes = _heads(generator)
    R, H, G = sizes["B"] * sizes["M"], sizes["H"], sizes["G"]
    K = generator.choice([generator.randint(1, 1100 // G), 8 * generator.randint(1, 128 // G)])
    N = _length(generator, R * H * G * K, most, 2000)
    if R * H * G * K < FEWEST:
        return None
    rotary = 2 * generator.choice([0, 0, generator.randint(0, K // 2)])
    flags = {"masked": generator.random() < 0.7, "scaled": generator.random() < 0.3}
    return {
        **sizes,
        **flags,
        **_scores(generator),
        "K": K,
        "N": N,
        "rotary": rotary,
        "spread": generator.choice([1.0, 1.0, 5.0]),
    }


def _history(generator: random.Random, K: int, T: int) -> dict[str, Any]:
    """The options of an attention over a history."""
    rotary = 2 * generator.choice([0, 0, generator.randint(0, K // 2)])
    bias = generator.choice(["", "", "bias", "row_bias"])
    return {
        **dict(K=K, T=T, T_max=T + generator.randint(0, 9), rotary=rotary),
        "window": generator.choice([0, 0, generator.randint(1, T)]),
        "shifted": rotary > 0 and generator.random() < 0.5,
        "prefix": generator.random() < 0.3,
        "softcap": generator.choice([0.0, 0.0, 0.0, 2.0]),
        "spread": generator.choice([1.0, 1.0, 5.0]),
        **({bias: True} if bias else {}),
    }


def _beam_attention(generator: random.Random, most: int) -> dict[str, Any] | None:
    sizes = _heads(generator)
    R, H = sizes["B"] * sizes["M"], sizes["H"]
    K, V = (generator.choice([generator.randint(1, 150), 8 * generator.randint(1, 16)]) for _ in range(2))
    T = _length(generator, R * H * max(K, V), most, 300)
    return {**sizes, **_history(generator, K, T), "V": V} if R * H * V >= FEWEST else None


def _beam_latent_attention(generator: random.Random, most: int) -> dict[str, Any] | None:
    sizes = _heads(generator)
    R, H, G = sizes["B"] * sizes["M"], sizes["H"], sizes["G"]
    K = generator.choice([generator.randint(1, 1100 // G), 8 * generator.randint(1, 128 // G)])
    T = _length(generator, R * H * G * K, most, 300)
    scaled = generator.random() < 0.3
    return {**sizes, **_history(generator, K, T), "scaled": scaled} if R * H * G * K >= FEWEST else None


def _ngram_block(generator: random.Random, most: int) -> dict[str, Any]:
    vocabulary = generator.randint(1, most)
    ids = min(generator.choice([1, 2, 5, 20, vocabulary]), vocabulary)
    sizes = {"R": generator.randint(1, 40), "T": generator.randint(1, 1500), "n": generator.randint(0, 6)}
    return {**sizes, "vocabulary": vocabulary, "ids": ids}


def _beam_top_k(generator: random.Random, most: int) -> dict[str, Any]:
    vocabulary = generator.randint(1, most)
    return {
        "B": generator.randint(1, 5),
        "M": generator.randint(1, 8),
        "vocabulary": vocabulary,
        "ids": min(generator.choice([5, 20, vocabulary]), vocabulary),
        "C": generator.randint(1, min(vocabulary, 40)),
        "T": generator.randint(1, 300),
        "P": generator.randint(0, 5),
        "n": generator.randint(0, 4),
        "penalty": generator.choice([1.0, 0.7, 1.3]),
        "normalize": generator.random() < 0.7,
        "spread": generator.choice([1.0, 10.0]),
        "nodes": [generator.randint(0, 10) for _ in range(generator.choice([0, 0, 7]))],
    }


DRAWS: dict[str, Callable[[random.Random, int], dict[str, Any] | None]] = {
    "NGramBlock": _ngram_block,
    "BeamAttention": _beam_attention,
    "BeamLatentAttention": _beam_latent_attention,
    "SourceAttention": _source_attention,
    "LatentAttention": _latent_attention,
    "BeamTopK": _beam_top_k,
}

LONG: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "source-4096": ("SourceAttention", dict(B=2, M=4, H=8, G=4, K=64, V=64, N=4096), ()),
    "latent-4096": ("LatentAttention", dict(B=1, M=4, H=16, G=1, K=1024, N=4096), ()),
    "latent-4096-by-head": ("LatentAttention", dict(B=1, M=4, H=16, G=16, K=64, N=4096, rotary=64), ()),
    "beam-4000": ("BeamAttention", dict(B=1, M=4, H=4, G=2, K=64, V=64, T=4000, T_max=4010, lengths=[4000]), ()),
    "beam-latent-4000": ("BeamLatentAttention", dict(B=1, M=2, H=4, G=1, K=1024, T=4000, T_max=4000), ()),
    "beam-latent-4000-by-head": ("BeamLatentAttention", dict(B=1, M=4, H=4, G=4, K=64, T=4000, T_max=4003), ()),
    "ngram-1280x142": ("NGramBlock", dict(R=1280, T=142, vocabulary=50265, n=3, ids=12), ()),
    "ngram-1280x4000": ("NGramBlock", dict(R=1280, T=4000, vocabulary=50265, n=3, ids=60), (0, 1, 640, 1279)),
    "ngram-32x4000": ("NGramBlock", dict(R=32, T=4000, vocabulary=50265, n=3, ids=60), ()),
    "top-k-512": ("BeamTopK", dict(B=128, M=4, vocabulary=50265, C=8, T=4000, n=3, penalty=1.1, ids=60), (0, 77, 127)),
    "top-k-1280": ("BeamTopK", dict(B=320, M=4, vocabulary=50265, C=8, T=60), (0, 1, 160, 319)),
}
"""Name -> operator, sizes, and the samples (NGramBlock: rows) to compute by the definition; without them, all."""
