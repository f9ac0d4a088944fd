"""Conversions between the build side's dataclasses and the entries of ``bundle.json``, both ways.

graph_passes and deploy must not import one another, so that sizes, plans and cache states exist on both sides; this
module alone imports both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.deploy.bundle.manifest import (
    CacheStateEntry,
    GraphEntry,
    LayerChoice,
    Manifest,
    ModelSizes,
    PassEntry,
    TensorEntry,
)
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.graph_passes import CacheState, KeyForm, LayerPlan, ModelGraphs, PassResult, RunSize, Sizes

__all__ = [
    "graph_entries",
    "layer_entries",
    "pass_entries",
    "plan_of",
    "sizes_entry",
    "sizes_of",
    "state_entries",
    "states_of",
    "tensor_entries",
]


def sizes_entry(sizes: Sizes) -> ModelSizes:
    """A model's sizes for ``bundle.json``."""
    return ModelSizes(**vars(sizes))


def sizes_of(manifest: Manifest) -> Sizes:
    """The sizes of a bundle's model."""
    return Sizes(**manifest.sizes.model_dump())


def layer_entries(plan: Sequence[LayerPlan]) -> tuple[LayerChoice, ...]:
    """A plan for ``bundle.json``."""
    return tuple(LayerChoice.model_validate({"layer": layer, **asdict(kinds)}) for layer, kinds in enumerate(plan))


def plan_of(manifest: Manifest) -> tuple[LayerPlan, ...]:
    """The kinds of cache of a bundle's layers, without the reasons, so that plans can be compared."""
    return tuple(
        LayerPlan(
            layer.source,
            layer.generated,
            "",
            KeyForm(**layer.source_keys.model_dump()),
            KeyForm(**layer.generated_keys.model_dump()),
        )
        for layer in manifest.layers
    )


def state_entries(graphs: ModelGraphs) -> tuple[CacheStateEntry, ...]:
    """The caches of the generated part, for ``bundle.json``."""
    return tuple(CacheStateEntry.model_validate(vars(state)) for state in graphs.states)


def states_of(manifest: Manifest) -> tuple[CacheState, ...]:
    """The caches of the generated part of a bundle."""
    return tuple(CacheState(**state.model_dump()) for state in manifest.cache_states)


def pass_entries(results: Sequence[PassResult], run: RunSize) -> tuple[PassEntry, ...]:
    """The reports of the passes for ``bundle.json``, with the bytes that each saves for a run of this size."""
    return tuple(
        PassEntry(name=result.name, matched=result.matched, reason=result.reason, bytes_saved=result.bytes_saved(run))
        for result in results
    )


def graph_entries(graphs: ModelGraphs, folder: Path) -> dict[str, GraphEntry]:
    """The graphs, as written to ``folder``, for ``bundle.json``."""
    return {
        name: GraphEntry(
            **file_entry(folder, f"{name}.onnx").model_dump(),
            inputs=tensor_entries(graph.inputs),
            outputs=tensor_entries(graph.outputs),
        )
        for name, graph in graphs.named().items()
    }


def tensor_entries(tensors: Sequence[gs.Tensor]) -> tuple[TensorEntry, ...]:
    """Graph inputs or outputs for ``bundle.json``."""
    return tuple(
        TensorEntry(name=tensor.name, dtype=np.dtype(tensor.dtype).name, shape=tuple(tensor.shape))
        for tensor in tensors
    )
