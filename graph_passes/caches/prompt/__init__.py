"""Prompt caches of decoder-only models, one pass for each kind of ``--source-cache``."""
