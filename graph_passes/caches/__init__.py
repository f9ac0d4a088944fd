"""Kinds of cache: their bytes, cost and algebra; one file a kind in ``source`` and ``generated``."""
