"""Self-attention KV caches, one pass for each kind of ``--generated-cache``."""
