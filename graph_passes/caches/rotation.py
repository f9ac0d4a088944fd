"""The tables of a model's rotation, as operators of ours take them that turn keys when they read them."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import ROTATION
from tightbeam.graph_passes.model import ModelGraphs


class RotationTables:
    """Made once a graph for all layers that turn their keys, and once for those that do not."""

    def __init__(self, graphs: ModelGraphs, build: Builder) -> None:
        self.rotation = graphs.rotation
        self.build = build
        self.tables: dict[bool, list[gs.Tensor]] = {}

    def of(self, block: AttentionBlock) -> list[gs.Tensor]:
        """Cosines and sines [positions, X]: of no angle for a layer that turns nothing, since all nodes of an operator
        have the same inputs; none where no layer of the model turns its keys."""
        if self.rotation is None:
            return []
        turned = ROTATION in block.between
        if turned not in self.tables:
            cosines, sines = self.rotation
            own = (cosines, sines) if turned else (np.ones_like(cosines), np.zeros_like(sines))
            self.tables[turned] = [self.build.constant(table, np.float32) for table in own]
        return self.tables[turned]
