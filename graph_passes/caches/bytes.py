"""Bytes of each kind of cache by formula (docs/design.md, Algebra). Tests hold the allocations of bundles to these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tightbeam.graph_passes.model import RunSize, Sizes


def source_bytes(kinds: Sequence[str], sizes: Sizes, run: RunSize) -> int:
    """Bytes of the source caches of a whole batch.

    ``states`` and ``first-k`` are one matrix for all layers that read it. In a decoder-only model, whose layers read
    different ones, ``states`` is one matrix a layer, and there is no ``first-k``.

    Parameters
    ----------
    kinds
        Kind of source cache of each layer.
    sizes, run
        Sizes of the model and of the run.

    Raises
    ------
    KeyError
        For an unknown kind.
    """
    keys_and_values = sizes.G * (sizes.K + sizes.V)
    each = {"kv-per-beam": run.M * keys_and_values, "kv": keys_and_values, "k": _keys(sizes), "states": 0, "first-k": 0}
    once = {"states": sizes.source_D, "first-k": _keys(sizes)}
    if sizes.decoder_only:
        once = {}
        each = {**each, "states": sizes.D}
        del each["first-k"]

    def of(numbers: Mapping[str, int], chosen: Iterable[str]) -> int:
        return sum(_position_bytes(kind, numbers[kind], sizes, run) for kind in chosen)

    return run.B * run.N * (of(each, kinds) + of(once, set(kinds) & once.keys()))


def _position_bytes(kind: str, numbers: int, sizes: Sizes, run: RunSize) -> int:
    """Bytes of the numbers that a layer caches of one position; ``kv-per-beam`` is never quantised."""
    if not run.quantized_source or kind == "kv-per-beam":
        return numbers * run.itemsize
    rows = 2 * sizes.G if kind == "kv" else 1 if numbers else 0
    return numbers + 4 * rows


def generated_bytes(kinds: Sequence[str], sizes: Sizes, run: RunSize) -> int:
    """Bytes of the generated caches of a whole batch at T positions.

    Parameters
    ----------
    kinds
        Kind of generated cache of each layer.
    sizes, run
        Sizes of the model and of the run.

    Raises
    ------
    KeyError
        For an unknown kind.
    """
    keys_and_values = sizes.G * (sizes.K + sizes.V)
    each = {"kv-reordered": keys_and_values, "kv": keys_and_values, "k": _keys(sizes), "x": sizes.D}
    return run.R * run.T * sum(each[kind] for kind in kinds) * run.itemsize


def source_saved(kind: str, layers: int, sizes: Sizes) -> Callable[[RunSize], int]:
    """Bytes that ``layers`` source caches of a kind save against ``kv-per-beam``, as a function of the run."""
    return lambda run: source_bytes(["kv-per-beam"] * layers, sizes, run) - source_bytes([kind] * layers, sizes, run)


def generated_saved(kind: str, layers: int, sizes: Sizes) -> Callable[[RunSize], int]:
    """Bytes that ``layers`` generated caches of a kind save against ``kv-reordered``, as a function of the run.

    Reordering needs a second copy of the keys and values.
    """

    def saved(run: RunSize) -> int:
        copied = 2 * generated_bytes(["kv-reordered"] * layers, sizes, run)
        return copied - generated_bytes([kind] * layers, sizes, run)

    return saved


def _keys(sizes: Sizes) -> int:
    """Numbers of one position's cached keys; a norm of the keys adds one factor a head."""
    return sizes.G * (sizes.K + sizes.key_norm)
