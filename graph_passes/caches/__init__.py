"""Kinds of cache: their tables, bytes, cost and algebra; one file a kind in ``source``, ``prompt``, ``generated``."""
