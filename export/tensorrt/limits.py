"""Limits of an engine's runs, and the shapes of its inputs that follow."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tightbeam.deploy.bundle.engine_files import EngineLimits
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.runtimes.base import banned_capacity
from tightbeam.export.checkpoint.config import longest_output
from tightbeam.export.errors import ExportError
from tightbeam.export.tensorrt.builder_process import Range
from tightbeam.graph_passes import RunSize

__all__ = ["engine_limits", "shape_ranges", "values_on_host"]

CANDIDATES_A_BEAM, FEWEST_CANDIDATES_A_BEAM = 8, 2
"""Candidates of a beam in a step: the default limit, and the fewest. A step has one more than there are end-of-sequence
tokens; at least two."""

MOST_EDGES = 2**31 - 4
"""Edges of a trie: all that its int32 numbers of nodes allow."""

DEFAULTS = ("num_beams", "max_length", "max_new_tokens")
"""Generation defaults that limits are made of."""


def engine_limits(
    manifest: Manifest,
    *,
    max_batch_size: int = 8,
    max_num_beams: int | None = None,
    max_source_length: int | None = None,
    max_new_tokens: int | None = None,
    max_candidates: int | None = None,
) -> EngineLimits:
    """Limits of an engine.

    Parameters
    ----------
    manifest
        The bundle's; its sizes and generation defaults are the defaults of the limits.
    max_batch_size
        B.
    max_num_beams
        M; by default the bundle's, at least 4.
    max_source_length, max_new_tokens
        N and T, in tokens.
    max_candidates
        Candidates of a sample in a step; by default 8 a beam.

    Returns
    -------
    EngineLimits
        The largest run.

    Raises
    ------
    ExportError
        The model cannot run a limit, or a generation default of the bundle is no positive integer.
    """
    sizes = manifest.sizes
    for setting in DEFAULTS:
        default = manifest.generation.get(setting)
        if default is not None and (type(default) is not int or default < 1):
            raise ExportError(f"{setting} of the bundle is {default!r}, expected 1 or more; export the model again")
    beams = max_num_beams if max_num_beams is not None else max(RunSize.M, manifest.generation.get("num_beams") or 1)
    source = max_source_length if max_source_length is not None else sizes.max_source
    new = max_new_tokens if max_new_tokens is not None else longest_output(manifest.generation, sizes.max_target - 1)
    candidates = max_candidates if max_candidates is not None else min(CANDIDATES_A_BEAM * beams, sizes.vocabulary)
    given = {
        "max-batch-size": (max_batch_size, 1, 2**16),
        "max-num-beams": (beams, 1, sizes.vocabulary // FEWEST_CANDIDATES_A_BEAM),
        "max-source-length": (source, 1, sizes.max_source),
        "max-new-tokens": (new, 1, sizes.max_target - 1),
        "max-candidates": (candidates, FEWEST_CANDIDATES_A_BEAM * beams, sizes.vocabulary),
    }
    for name, (value, fewest, most) in given.items():
        if not fewest <= value <= most:
            raise ExportError(f"--{name} {value} cannot be run by this model; pass {fewest} to {most}")
    return EngineLimits(
        max_batch_size=max_batch_size,
        max_num_beams=beams,
        max_source_length=source,
        max_new_tokens=new,
        max_candidates=candidates,
    )


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
