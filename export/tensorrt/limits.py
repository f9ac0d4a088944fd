"""Limits of an engine's runs, and the shapes of its inputs that follow."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tightbeam.deploy.bundle.engine_files import EngineLimits
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.runtimes.base import banned_capacity
from tightbeam.export.checkpoint.config import longest_output
from tightbeam.export.errors import ExportError
from tightbeam.export.tensorrt.builder_process import Range
from tightbeam.export.tensorrt.options import EngineOptions
from tightbeam.graph_passes import RunSize

__all__ = ["engine_limits", "shape_ranges", "values_on_host"]

CANDIDATES_A_BEAM, FEWEST_CANDIDATES_A_BEAM = 8, 2
"""Candidates of a beam in a step: the default limit, and the fewest. A step has one more than there are end-of-sequence
tokens; at least two."""

MOST_EDGES = 2**31 - 4
"""Most edges of a trie, whose nodes are numbered in int32."""

DEFAULTS = ("num_beams", "max_length", "max_new_tokens")
"""Generation defaults from which limits are made."""


def engine_limits(manifest: Manifest, options: EngineOptions | None = None) -> EngineLimits:
    """Limits of an engine.

    Parameters
    ----------
    manifest
        The bundle's; its sizes and generation defaults are the defaults of the limits.
    options
        The options, whose ``max_`` fields are the limits if they are given; the defaults if None.

    Returns
    -------
    EngineLimits
        The largest run.

    Raises
    ------
    ExportError
        The model cannot run a limit, or a generation default of the bundle is not a positive integer.
    """
    options, sizes = options or EngineOptions(), manifest.sizes
    for setting in DEFAULTS:
        default = manifest.generation.get(setting)
        if default is not None and (type(default) is not int or default < 1):
            raise ExportError(f"{setting} of the bundle is {default!r}, expected 1 or more; export the model again")
    beams = _given(options.max_num_beams, max(RunSize.M, manifest.generation.get("num_beams") or 1))
    ranges = {
        "max_batch_size": (1, options.max_batch_size, 2**16),
        "max_num_beams": (1, beams, sizes.vocabulary // FEWEST_CANDIDATES_A_BEAM),
        "max_source_length": (1, _given(options.max_source_length, sizes.max_source), sizes.max_source),
        "max_new_tokens": (
            1,
            _given(options.max_new_tokens, longest_output(manifest.generation, sizes.max_target - 1)),
            sizes.max_target - 1,
        ),
        "max_candidates": (
            FEWEST_CANDIDATES_A_BEAM * beams,
            _given(options.max_candidates, min(CANDIDATES_A_BEAM * beams, sizes.vocabulary)),
            sizes.vocabulary,
        ),
    }
    for name, (fewest, value, most) in ranges.items():
        if not fewest <= value <= most:
            flag = f"--{name.replace('_', '-')}"
            raise ExportError(f"{flag} {value} cannot be run by this model; pass {fewest} to {most}")
    return EngineLimits(**{name: value for name, (_, value, _) in ranges.items()})


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def shape_ranges(graph: gs.Graph, manifest: Manifest, limits: EngineLimits) -> dict[str, Range]:
    """Smallest, usual and largest shape of every input of a graph, by name."""
    sizes = _sizes(manifest, limits)

    def shape(tensor: gs.Tensor, place: int) -> tuple[int, ...]:
        return tuple(sizes[size][place] if isinstance(size, str) else int(size) for size in tensor.shape)

    return {tensor.name: (shape(tensor, 0), shape(tensor, 1), shape(tensor, 2)) for tensor in graph.inputs}


def _sizes(manifest: Manifest, limits: EngineLimits) -> dict[str, tuple[int, int, int]]:
    """Smallest, usual and largest size of each letter."""
    B, M, T = limits.max_batch_size, limits.max_num_beams, limits.max_new_tokens
    usual = min(manifest.generation.get("num_beams") or 1, M)
    history = T + (limits.max_source_length if manifest.sizes.decoder_only else 0)
    return {
        "B": (1, B, B),
        "M": (1, usual, M),
        "R": (1, B * usual, B * M),
        "N": (1, limits.max_source_length, limits.max_source_length),
        "T": (0, max(1, T // 2), T),
        "T_ancestry": (1, max(1, T // 2), T),
        "T_history": (1, max(1, history // 2), history),
        "B groups": (1, B, B * M),
        "M / groups": (1, usual, M),
        "P": (0, 0, banned_capacity(manifest.sizes.vocabulary, 0)),
        "Y": (0, 0, MOST_EDGES),
        "Y + 3": (3, 3, MOST_EDGES + 3),
    }


def values_on_host(manifest: Manifest, limits: EngineLimits) -> dict[str, Range]:
    """Smallest, usual and largest value of the inputs whose values are sizes, by name."""
    usual = _sizes(manifest, limits)["M"][1]
    return {
        "num_beams": ((1,), (usual,), (limits.max_num_beams,)),
        "candidates": ((1,), (min(2 * usual, limits.max_candidates),), (limits.max_candidates,)),
    }
