"""Passes that every variant runs, before or after those of its caches."""
