"""What each decoder layer keeps: kinds of cache, the presets of ``--variant``, and the pass that makes each kind so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightbeam.graph_passes.caches.algebra import ROTATION
from tightbeam.graph_passes.caches.bytes import generated_bytes, source_bytes
from tightbeam.graph_passes.caches.cached_keys import NORM, changed_keys, narrow_keys
from tightbeam.graph_passes.caches.generated.k import self_keys
from tightbeam.graph_passes.caches.generated.kv import self_beam_cache
from tightbeam.graph_passes.caches.generated.kv_reordered import self_reordered
from tightbeam.graph_passes.caches.generated.x import self_inputs
from tightbeam.graph_passes.caches.prompt.k import prompt_keys
from tightbeam.graph_passes.caches.prompt.kv import prompt_shared
from tightbeam.graph_passes.caches.prompt.kv_per_beam import prompt_per_beam
from tightbeam.graph_passes.caches.prompt.states import prompt_inputs
from tightbeam.graph_passes.caches.source.first_k import cross_first_keys
from tightbeam.graph_passes.caches.source.k import cross_keys
from tightbeam.graph_passes.caches.source.kv import cross_shared
from tightbeam.graph_passes.caches.source.kv_per_beam import cross_per_beam
from tightbeam.graph_passes.caches.source.states import cross_latent
from tightbeam.graph_passes.model import LayerPass, PassError, RunSize, Sizes

__all__ = [
    "GENERATED",
    "PRESETS",
    "PROMPT",
    "SOURCE",
    "LayerPlan",
    "Preset",
    "plan_bytes",
    "presets_of",
    "require_sizes",
    "same_for_all",
]


@dataclass(frozen=True)
class LayerPlan:
    """What one layer keeps for the source and for the generated part, under the names of ``SOURCE`` and ``GENERATED``,
    and why."""

    source: str
    generated: str
    reason: str


SOURCE: Mapping[str, LayerPass] = {
    "kv-per-beam": cross_per_beam,
    "kv": cross_shared,
    "k": cross_keys,
    "first-k": cross_first_keys,
    "states": cross_latent,
}
"""Kinds of source cache, in the order in which their passes run."""

PROMPT: Mapping[str, LayerPass] = {
    "kv-per-beam": prompt_per_beam,
    "kv": prompt_shared,
    "k": prompt_keys,
    "states": prompt_inputs,
}
"""Kinds of source cache of a decoder-only model, whose source is the prompt, likewise. There is no ``first-k``: its
layers do not read one source."""

GENERATED: Mapping[str, LayerPass] = {
    "kv-reordered": self_reordered,
    "kv": self_beam_cache,
    "k": self_keys,
    "x": self_inputs,
}
"""Kinds of generated cache, likewise."""


@dataclass(frozen=True)
class Preset:
    """A variant: one kind of source cache and one of generated cache for all layers."""

    source: str
    generated: str

    def cache_bytes(self, sizes: Sizes, run: RunSize) -> tuple[int, int]:
        """Bytes of the source cache and of the generated cache for a run."""
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
"""The values of ``--variant``; docs/design.md, Variants."""


def presets_of(sizes: Sizes) -> dict[str, Preset]:
    """The presets whose kinds of cache a model of these sizes can have; its passes say more."""
    source = PROMPT if sizes.decoder_only else SOURCE
    found = {}
    for name, preset in PRESETS.items():
        try:
            require_sizes(preset, sizes)
        except PassError:
            continue
        if preset.source in source:
            found[name] = preset
    return found


def same_for_all(preset: Preset, L: int, reason: str) -> tuple[LayerPlan, ...]:
    """A preset's kinds for each of L layers."""
    return (LayerPlan(preset.source, preset.generated, reason),) * L


def plan_bytes(plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize) -> tuple[int, int]:
    """Bytes of the source cache and of the generated cache for a run."""
    source = source_bytes([layer.source for layer in plan], sizes, run)
    return source, generated_bytes([layer.generated for layer in plan], sizes, run)


def require_sizes(preset: Preset, sizes: Sizes) -> None:
    """Raise PassError, in the words of the passes, for a kind of cache that no model of these sizes can have, before
    there are graphs, and for two that do not go together. The passes themselves know more."""
    between = [op for op, stands in ((ROTATION, sizes.rotary), (NORM, sizes.key_norm)) if stands]
    E = sizes.G * sizes.K
    for kinds, kind in ((PROMPT if sizes.decoder_only else SOURCE, preset.source), (GENERATED, preset.generated)):
        if kind not in kinds:
            continue  # `passes_of` says it
        name = getattr(kinds[kind], "__name__", kind)
        if between and kind in ("states", "x"):
            raise changed_keys(name, 0, between)
        if E < sizes.D and kind in ("k", "first-k"):
            raise narrow_keys(name, 0, sizes.D, E, bool(between))
    if sizes.decoder_only:
        _require_pair(preset)


def _require_pair(preset: Preset) -> None:
    """What a decoder-only model's layers attend to together."""
    if preset.generated in GENERATED and (preset.source == "kv-per-beam") != (preset.generated == "kv-reordered"):
        raise PassError(
            f"source {preset.source} and generated {preset.generated}: in a decoder-only model kv-per-beam and "
            "kv-reordered go together, and with nothing else; choose both (--variant baseline) or neither"
        )
    if preset.generated == "x" and preset.source in ("kv", "k"):
        raise PassError(
            f"source {preset.source} and generated x: in a decoder-only model x goes with a prompt kept as states; "
            "keep that, or kv or k of the generated part"
        )
