"""Checkpoint to canonical graphs: one trace a model, from which every variant is rewritten."""
