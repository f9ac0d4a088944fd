"""Kinds of cache, the pass that makes each, and the presets of ``--variant``.

A *source cache* holds what layers attend to in the source: the cross-attention cache of an encoder-decoder model, the
prompt cache of a decoder-only one. A *generated cache* holds what they attend to in the generated tokens: the
self-attention KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightbeam.graph_passes.attention import NORM, ROTATION
from tightbeam.graph_passes.caches.bytes import generated_bytes, source_bytes
from tightbeam.graph_passes.caches.cached_keys import narrow_keys, unusable_keys
from tightbeam.graph_passes.caches.generated.k import self_keys
from tightbeam.graph_passes.caches.generated.kv import self_beam_cache
from tightbeam.graph_passes.caches.generated.kv_reordered import self_reordered
from tightbeam.graph_passes.caches.generated.x import self_inputs
from tightbeam.graph_passes.caches.source.first_k import cross_first_keys
from tightbeam.graph_passes.caches.source.k import cross_keys, prompt_keys
from tightbeam.graph_passes.caches.source.kv import cross_shared, prompt_shared
from tightbeam.graph_passes.caches.source.kv_per_beam import cross_per_beam, prompt_per_beam
from tightbeam.graph_passes.caches.source.states import cross_latent, prompt_inputs
from tightbeam.graph_passes.model import LayerPass, PassError, RunSize, Sizes

__all__ = [
    "GENERATED",
    "PRESETS",
    "PROMPT",
    "PROMPT_PAIRS",
    "SOURCE",
    "LayerPlan",
    "Preset",
    "plan_bytes",
    "presets_of",
    "require_kinds",
    "require_sizes",
    "same_for_all",
]

SOURCE: Mapping[str, LayerPass] = {
    "kv-per-beam": cross_per_beam,
    "kv": cross_shared,
    "k": cross_keys,
    "first-k": cross_first_keys,
    "states": cross_latent,
}
"""Kinds of source cache of an encoder-decoder model, in the order of their passes."""

PROMPT: Mapping[str, LayerPass] = {
    "kv-per-beam": prompt_per_beam,
    "kv": prompt_shared,
    "k": prompt_keys,
    "states": prompt_inputs,
}
"""Kinds of source cache of a decoder-only model, in the order of their passes. Its layers do not read one source, so
there is no ``first-k``."""

GENERATED: Mapping[str, LayerPass] = {
    "kv-reordered": self_reordered,
    "kv": self_beam_cache,
    "k": self_keys,
    "x": self_inputs,
}
"""Kinds of generated cache, in the order of their passes."""

PROMPT_PAIRS: Mapping[str, tuple[str, ...]] = {
    "kv-per-beam": ("kv-reordered",),
    "kv": ("kv", "k"),
    "k": ("kv", "k"),
    "states": ("kv", "k", "x"),
}
"""Generated caches that go with each prompt cache. One softmax covers both, so the attention output over the prompt
must be convertible to the form of the generated cache (``prefix.py``), and ``kv-reordered`` reads both caches
as one. In an encoder-decoder model any two kinds go together."""


@dataclass(frozen=True)
class LayerPlan:
    """Kinds of cache of one layer, and the reason for them."""

    source: str
    """key of ``SOURCE`` or ``PROMPT``"""
    generated: str
    """key of ``GENERATED``"""
    reason: str


@dataclass(frozen=True)
class Preset:
    """A variant: one kind of source cache and one of generated cache for all layers."""

    source: str
    generated: str

    def cache_bytes(self, sizes: Sizes, run: RunSize) -> tuple[int, int]:
        """Bytes of the source caches and of the generated caches in a run."""
        return plan_bytes(same_for_all(self, sizes.L, ""), sizes, run)


PRESETS: Mapping[str, Preset] = {
    "baseline": Preset("kv-per-beam", "kv-reordered"),
    "dedup": Preset("kv", "kv"),
    "el": Preset("states", "kv"),
    "kcache": Preset("k", "k"),
    "xcache": Preset("states", "x"),
    "slim": Preset("states", "k"),
    "hybrid": Preset("first-k", "k"),
}
"""Values of ``--variant``; docs/how-to/choose-a-variant.md."""


def presets_of(sizes: Sizes) -> dict[str, Preset]:
    """Presets that a model of these sizes can have, by name; its passes may refuse more."""
    found = {}
    for name, preset in PRESETS.items():
        try:
            require_kinds(same_for_all(preset, 1, ""), decoder_only=sizes.decoder_only)
            require_sizes(preset, sizes)
        except PassError:
            continue
        found[name] = preset
    return found


def same_for_all(preset: Preset, L: int, reason: str) -> tuple[LayerPlan, ...]:
    """Plan of L layers with a preset's kinds."""
    return (LayerPlan(preset.source, preset.generated, reason),) * L


def plan_bytes(plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize) -> tuple[int, int]:
    """Bytes of a plan's caches.

    Parameters
    ----------
    plan
        Kinds of cache of each of L layers.
    sizes, run
        Sizes of the model and of the run.

    Returns
    -------
    tuple
        Bytes of the source caches, and of the generated caches at T positions.
    """
    source = source_bytes([layer.source for layer in plan], sizes, run)
    return source, generated_bytes([layer.generated for layer in plan], sizes, run)


def require_kinds(plan: Sequence[LayerPlan], *, decoder_only: bool) -> None:
    """Raise PassError for a kind of cache that does not exist, and for two that do not go together."""
    source = PROMPT if decoder_only else SOURCE
    for kinds, chosen in ((source, [layer.source for layer in plan]), (GENERATED, [layer.generated for layer in plan])):
        unknown = sorted(set(chosen) - kinds.keys())
        if unknown:
            model = "a decoder-only model" if decoder_only else "this model"
            raise PassError(f"{model} has no cache {unknown[0]!r}; expected one of {', '.join(kinds)}")
    for layer in plan if decoder_only else ():
        allowed = PROMPT_PAIRS[layer.source]
        if layer.generated not in allowed:
            raise PassError(
                f"source cache {layer.source} and generated cache {layer.generated} do not go together in a "
                f"decoder-only model; with source cache {layer.source} choose generated cache {' or '.join(allowed)}"
            )


def require_sizes(preset: Preset, sizes: Sizes) -> None:
    """Refuse a preset that no model of these sizes can have, before there are graphs.

    The passes check the graphs themselves, and may refuse more.

    Parameters
    ----------
    preset
        Kinds of cache, known and going together (``require_kinds``).
    sizes
        Sizes of the model.

    Raises
    ------
    PassError
        In the words of the pass that would refuse the graph.
    """
    between = [op for op, present in ((ROTATION, sizes.rotary), (NORM, sizes.key_norm)) if present]
    E = sizes.G * sizes.K
    for kinds, kind in ((PROMPT if sizes.decoder_only else SOURCE, preset.source), (GENERATED, preset.generated)):
        name = getattr(kinds[kind], "__name__", kind)
        changes = [] if kinds is SOURCE else between  # keys of an encoder's positions meet their queries as they are
        if changes and kind in ("states", "x"):
            raise unusable_keys(name, 0, changes)
        D = sizes.D if kinds is GENERATED else sizes.source_D
        if E < D and kind in ("k", "first-k"):
            raise narrow_keys(name, 0, D, E, bool(changes))
