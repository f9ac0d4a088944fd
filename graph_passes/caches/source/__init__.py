"""Cross-attention caches, one pass for each kind of ``--source-cache``."""
