"""Bytes of each cache by formula (docs/design.md, Variants). What a bundle allocates is tested against these."""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.model import RunSize, Sizes


def source_bytes(kinds: Sequence[str], sizes: Sizes, run: RunSize) -> int:
    """Bytes kept for the source of a whole batch; ``kinds``: the source cache of each layer.

    ``states`` and ``first-k`` keep one matrix for all layers that read it; of a decoder-only model, whose layers read
    different ones, ``states`` keeps one a layer, and there is no ``first-k``. Raises KeyError for another kind.
    """
    keys_and_values = sizes.G * (sizes.K + sizes.V)
    each = {"kv-per-beam": run.M * keys_and_values, "kv": keys_and_values, "k": _keys(sizes), "states": 0, "first-k": 0}
    once = {"states": sizes.D, "first-k": _keys(sizes)}
    if sizes.decoder_only:
        once = {}
        each = {**each, "states": sizes.D}
        del each["first-k"]
    numbers = sum(each[kind] for kind in kinds) + sum(once[kind] for kind in set(kinds) & once.keys())
    return run.B * run.N * numbers * run.itemsize


def generated_bytes(kinds: Sequence[str], sizes: Sizes, run: RunSize) -> int:
    """Bytes kept for T generated positions of a whole batch; ``kinds``: the generated cache of each layer.

    Raises KeyError for another kind.
    """
    keys_and_values = sizes.G * (sizes.K + sizes.V)
    each = {"kv-reordered": keys_and_values, "kv": keys_and_values, "k": _keys(sizes), "x": sizes.D}
    return run.R * run.T * sum(each[kind] for kind in kinds) * run.itemsize


def _keys(sizes: Sizes) -> int:
    """Numbers of one position's keys, with what their norm made of each head."""
    return sizes.G * (sizes.K + sizes.key_norm)
