"""Kinds of cache: their bytes, cost and algebra; a file a kind in ``source`` and ``generated``."""
