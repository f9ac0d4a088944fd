"""Passes that every variant runs, before or after its caches are chosen."""
