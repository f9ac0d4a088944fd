"""Cross-attention caches and prompt caches, one file for each kind of ``--source-cache``."""
