"""Bytes of each cache by formula, DESIGN.md section 3. What a bundle allocates is tested against these."""

from __future__ import annotations

from tightbeam.graph_passes.base import Job, Sizes


def source_bytes(kind: str, sizes: Sizes, job: Job) -> int:
    """Bytes kept for the source of a whole batch, for a kind of source cache. Raises KeyError for another kind."""
    keys_and_values = sizes.L * job.N * sizes.G * (sizes.K + sizes.V)
    numbers = {
        "kv-per-beam": job.M * keys_and_values,
        "kv": keys_and_values,
        "states": job.N * sizes.D,
    }
    return job.B * numbers[kind] * job.itemsize


def generated_bytes(kind: str, sizes: Sizes, job: Job) -> int:
    """Bytes kept for T generated positions of a whole batch. Raises KeyError for another kind."""
    numbers = {"kv": sizes.L * job.T * sizes.G * (sizes.K + sizes.V)}
    return job.R * numbers[kind] * job.itemsize
