"""Passes that are not exact: lower precision, its simulation, and skipped source positions."""
