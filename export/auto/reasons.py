"""Reasons in plain words why a model cannot have a variant, by its sizes alone."""

from tightbeam.graph_passes import why_not

__all__ = ["why_not"]
