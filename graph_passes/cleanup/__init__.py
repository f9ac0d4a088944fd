"""Passes that every variant runs, before or after the passes of its caches."""
