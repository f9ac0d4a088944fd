"""The safer kind of cache in place of each kind whose error the guard measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tightbeam.graph_passes import LayerPlan

__all__ = ["SAFER", "needs_guard"]

SAFER: Mapping[str, Mapping[str, str]] = {
    "source": {"k": "states", "first-k": "states", "states": "kv"},
    "generated": {"k": "x", "x": "kv"},
}
"""The safer kind in place of each kind. Kinds without an entry cache keys and values themselves and need no guard."""


def needs_guard(plan: Sequence[LayerPlan]) -> bool:
    """True where some layer caches anything else than keys and values."""
    return any(layer.source in SAFER["source"] or layer.generated in SAFER["generated"] for layer in plan)
