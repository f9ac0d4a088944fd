"""Reasons in plain words why a model cannot have a variant, by its sizes alone."""

from __future__ import annotations

from tightbeam.graph_passes import PROMPT, Preset, Sizes

__all__ = ["why_not"]


def why_not(preset: Preset, sizes: Sizes) -> str:
    """The reason why no model of these sizes can have a preset's caches, as a verb phrase; empty if it can.

    The passes check the graphs themselves, and may refuse more.
    """
    kinds = {preset.source, preset.generated}
    if sizes.decoder_only and preset.source not in PROMPT:
        return "cannot be used with a decoder-only model, whose layers do not read one source"
    changed = kinds if sizes.decoder_only else {preset.generated}  # no position is in the keys of an encoder's output
    if changed & {"states", "x"} and sizes.rotary:
        return "cannot be used with rotary positions (RoPE): keys made of cached inputs would not be rotated"
    if changed & {"states", "x"} and sizes.key_norm:
        return "cannot be used with a norm of the keys: keys made of cached inputs would not be normalised"
    E = sizes.G * sizes.K
    D = max(sizes.D if preset.generated == "k" else 0, sizes.source_D if preset.source in ("k", "first-k") else 0)
    if D > E:
        return f"cannot be used with keys of {E} numbers in a model {D} wide: they do not determine the values"
    return ""
