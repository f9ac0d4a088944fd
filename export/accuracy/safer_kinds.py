"""Plans whose error the guard measures."""

from tightbeam.graph_passes import needs_guard

__all__ = ["needs_guard"]
