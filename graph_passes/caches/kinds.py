"""Kinds of cache, the pass that makes each, and the presets of ``--variant``.

A *source cache* holds what layers attend to in the source: the cross-attention cache of an encoder-decoder model, the
prompt cache of a decoder-only one. A *generated cache* holds what they attend to in the generated tokens: the
self-attention KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightbeam.graph_passes.caches.bytes import generated_bytes, source_bytes
from tightbeam.graph_passes.caches.generated.k import GENERATED_K
from tightbeam.graph_passes.caches.generated.kv import GENERATED_KV
from tightbeam.graph_passes.caches.generated.kv_reordered import GENERATED_KV_REORDERED
from tightbeam.graph_passes.caches.generated.x import GENERATED_X
from tightbeam.graph_passes.caches.kind import GeneratedKind, SourceKind
from tightbeam.graph_passes.caches.source.first_k import SOURCE_FIRST_K
from tightbeam.graph_passes.caches.source.k import SOURCE_K
from tightbeam.graph_passes.caches.source.kv import SOURCE_KV
from tightbeam.graph_passes.caches.source.kv_per_beam import SOURCE_KV_PER_BEAM
from tightbeam.graph_passes.caches.source.states import SOURCE_STATES
from tightbeam.graph_passes.model import PassError, RunSize, Sizes

__all__ = [
    "GENERATED",
    "PRESETS",
    "PROMPT_PAIRS",
    "SOURCE",
    "KeyForm",
    "LayerPlan",
    "Preset",
    "few_beside_source",
    "needs_guard",
    "plan_bytes",
    "presets_of",
    "require_kinds",
    "same_for_all",
    "why_not",
]

SOURCE_KINDS = (SOURCE_KV_PER_BEAM, SOURCE_KV, SOURCE_K, SOURCE_FIRST_K, SOURCE_STATES)
"""Kinds of source cache, in the order of their passes."""
GENERATED_KINDS = (GENERATED_KV_REORDERED, GENERATED_KV, GENERATED_K, GENERATED_X)
"""Kinds of generated cache, in the order of their passes."""
SOURCE: Mapping[str, SourceKind] = {kind.name: kind for kind in SOURCE_KINDS}
GENERATED: Mapping[str, GeneratedKind] = {kind.name: kind for kind in GENERATED_KINDS}
PROMPT_PAIRS: Mapping[str, tuple[str, ...]] = {
    source.name: tuple(kind.name for kind in GENERATED_KINDS if source.prefix in kind.prefixes)
    for source in SOURCE_KINDS
    if source.prompt_pass is not None
}
"""Generated caches that go with each source cache if one softmax covers both: the pass of the generated cache must take
the form of the attention output over the source. With cross-attention any two kinds go together."""

ONE_SOFTMAX = "a decoder-only model or one with merged attention"
"""Models whose source and output share a softmax, in errors."""


@dataclass(frozen=True)
class KeyForm:
    """The keys of an attention whose values are made of keys: as in the checkpoint, or better conditioned."""

    orthonormal: bool = False
    """each head's keys are made orthonormal, and its queries take the rest (``cleanup/key_forms``)"""
    few: int = 0
    """r: numbers cached beside the keys of a position, as columns of the same rows; a multiple of G"""


@dataclass(frozen=True)
class LayerPlan:
    """Kinds of cache of one layer, and the reason for them."""

    source: str
    """key of ``SOURCE``"""
    generated: str
    """key of ``GENERATED``"""
    reason: str
    source_keys: KeyForm = KeyForm()
    generated_keys: KeyForm = KeyForm()


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
            require_kinds(same_for_all(preset, 1, ""), one_softmax=sizes.one_softmax)
        except PassError:
            continue
        if not why_not(preset, sizes):
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
    source = source_bytes([SOURCE[layer.source] for layer in plan], sizes, run)
    generated = generated_bytes([GENERATED[layer.generated] for layer in plan], sizes, run)
    few, own = few_beside_source(plan), sum(layer.generated_keys.few for layer in plan)
    few_bytes = few * (1 if run.quantized_source else run.itemsize)
    return source + run.B * run.N * few_bytes, generated + run.R * run.T * own * run.itemsize


def few_beside_source(plan: Sequence[LayerPlan]) -> int:
    """Numbers cached beside the keys of a source's position in all layers; layers of ``first-k`` share theirs."""
    of_first = [layer.source_keys.few for layer in plan if SOURCE[layer.source].first_attention is not None]
    alone = sum(layer.source_keys.few for layer in plan if SOURCE[layer.source].first_attention is None)
    return alone + max(of_first, default=0)


def require_kinds(plan: Sequence[LayerPlan], *, one_softmax: bool) -> None:
    """Raise PassError for a kind of cache that does not exist, and for two that do not go together."""
    source = PROMPT_PAIRS if one_softmax else SOURCE
    for kinds, chosen in ((source, [layer.source for layer in plan]), (GENERATED, [layer.generated for layer in plan])):
        unknown = sorted(set(chosen) - kinds.keys())
        if unknown:
            model = ONE_SOFTMAX if one_softmax else "this model"
            raise PassError(f"{model} has no cache {unknown[0]!r}; expected one of {', '.join(kinds)}")
    for layer in plan if one_softmax else ():
        allowed = PROMPT_PAIRS[layer.source]
        if layer.generated not in allowed:
            raise PassError(
                f"source cache {layer.source} and generated cache {layer.generated} do not go together in "
                f"{ONE_SOFTMAX}; with source cache {layer.source} choose generated cache {' or '.join(allowed)}"
            )


def why_not(preset: Preset, sizes: Sizes) -> str:
    """The reason why no model of these sizes can have a preset's caches, as a verb phrase; empty if it can.

    The passes check the graphs themselves, and may refuse more.
    """
    source, generated = SOURCE[preset.source], GENERATED[preset.generated]
    if sizes.one_softmax and source.prompt_pass is None:
        return "cannot be used if one softmax covers source and output"
    return source.refusal(sizes) or generated.refusal(sizes)


def needs_guard(plan: Sequence[LayerPlan]) -> bool:
    """True if some layer caches anything else than keys and values, whose error an export measures."""
    return any(SOURCE[layer.source].one_matrix or GENERATED[layer.generated].one_matrix for layer in plan)
