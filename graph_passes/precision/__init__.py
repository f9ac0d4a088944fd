"""Passes that are not exact: lower precision, its simulation, integers of 8 bits, and skipped source positions."""
