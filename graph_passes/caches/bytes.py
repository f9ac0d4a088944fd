"""Bytes of caches by formula (docs/design.md, Algebra). Tests hold the allocations of bundles to these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tightbeam.graph_passes.caches.kind import GeneratedKind, SourceKind
from tightbeam.graph_passes.model import RunSize, Sizes


def source_bytes(kinds: Sequence[SourceKind], sizes: Sizes, run: RunSize) -> int:
    """Bytes of the source caches of a whole batch.

    Parameters
    ----------
    kinds
        Kind of source cache of each layer.
    sizes, run
        Sizes of the model and of the run.
    """
    counts = {kind.name: (kind, kinds.count(kind)) for kind in kinds}
    return run.B * run.N * sum(_position_bytes(kind, layers, sizes, run) for kind, layers in counts.values())


def _position_bytes(kind: SourceKind, layers: int, sizes: Sizes, run: RunSize) -> int:
    """Bytes that so many layers of a kind cache of one position of a sample."""
    numbers = kind.numbers(sizes, layers)
    if run.quantized_source and kind.scales is not None:
        return numbers + 4 * kind.scales(sizes, layers)
    return numbers * run.itemsize * (run.M if kind.per_beam else 1)


def generated_bytes(kinds: Sequence[GeneratedKind], sizes: Sizes, run: RunSize) -> int:
    """Bytes of the generated caches of a whole batch at T positions.

    Parameters
    ----------
    kinds
        Kind of generated cache of each layer.
    sizes, run
        Sizes of the model and of the run.
    """
    return run.R * run.T * sum(_row_bytes(kind, sizes, run) for kind in kinds)


def _row_bytes(kind: GeneratedKind, sizes: Sizes, run: RunSize) -> int:
    """Bytes that a layer of a kind caches of one position of a row."""
    if run.quantized_generated and kind.scales is not None:
        return kind.numbers(sizes) + 4 * kind.scales(sizes)
    return kind.numbers(sizes) * run.itemsize


def source_saved(kind: SourceKind, layers: int, sizes: Sizes) -> Callable[[RunSize], int]:
    """Bytes that ``layers`` source caches of a kind save against keys and values of each beam, by the run."""

    def saved(run: RunSize) -> int:
        per_beam = run.R * run.N * layers * sizes.key_value_numbers * run.itemsize
        return per_beam - source_bytes([kind] * layers, sizes, run)

    return saved


def generated_saved(kind: GeneratedKind, layers: int, sizes: Sizes) -> Callable[[RunSize], int]:
    """Bytes that ``layers`` generated caches of a kind save against keys and values that are reordered, by the run.

    Reordering needs a second copy of the keys and values.
    """

    def saved(run: RunSize) -> int:
        copied = 2 * run.R * run.T * layers * sizes.key_value_numbers * run.itemsize
        return copied - generated_bytes([kind] * layers, sizes, run)

    return saved
