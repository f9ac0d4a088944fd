"""Benchmarks, and the plots of docs/papers.md."""
