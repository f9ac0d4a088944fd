"""Benchmarks, and the pictures of docs/benchmarks.md."""
