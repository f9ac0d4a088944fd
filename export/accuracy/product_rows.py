"""Real rows of every product: the float32 graphs run over calibration inputs, with the rows as further outputs.

Of the encoder's products the same few hundred positions are taken, without padding; of the decoder's products all rows
of all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.export.accuracy.calibration_run import TAKEN, CalibrationRun, Outputs, evenly
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.sites import Site

__all__ = ["product_rows"]

NAME = "guard"


def product_rows(graphs: ModelGraphs, sites: Sequence[Site], run: CalibrationRun) -> tuple[dict[str, Array], Outputs]:
    """Rows that each product multiplies while the model generates greedily.

    Parameters
    ----------
    graphs
        A variant's graphs in float32; they stay as they are.
    sites
        Their products and embeddings; embeddings have no rows.
    run
        The calibration inputs.

    Returns
    -------
    tuple
        By the name of the site float32 [rows, X], or [rows, H X] of H heads, with ``run.most_rows`` rows at most, one
        array for all products of the same rows; and what the model generated.

    Raises
    ------
    ExportError
        ONNX Runtime cannot run the graphs, or their scores are NaN or infinite.
    """
    tapped = graphs.copy()
    read: dict[str, Mapping[str, str]] = {
        name: _tap(Builder(graph, NAME), [site for site in sites if site.name.startswith(f"{name}.")], name)
        for name, graph in (("encoder", tapped.encoder), ("decoder", tapped.decoder))
    }
    found = run(tapped, wanted=set(read["decoder"].values()))
    taken = {output: rows[evenly(len(rows), run.most_rows)] for output, rows in found.decoded.items()}
    rows = {site: found.encoded[output] for site, output in read["encoder"].items()}
    return rows | {site: taken[output] for site, output in read["decoder"].items()}, found


def _tap(build: Builder, sites: Sequence[Site], name: str) -> dict[str, str]:
    """Add an output for the rows of each product; returns the name of the output by the name of the site."""
    tensors = build.graph.tensors()
    outputs: dict[str, str] = {}  # by tensor
    taken = gs.Variable(TAKEN, dtype=np.dtype(np.int64), shape=["taken"])
    found = {}
    for site in sites:
        if site.rows is None:
            continue
        if site.rows.name not in outputs:
            width = site.X * max(1, site.heads)
            flat = build.reshape(tensors[site.rows.name], [-1, width])
            if name == "encoder":
                height = build.add("Shape", [flat], {"start": 0, "end": 1})
                place = build.add("Mod", [taken, height])  # a product with fewer rows than positions repeats some
                flat = build.add("Gather", [flat, place], {"axis": 0})
            flat.dtype, flat.shape = np.dtype(np.float32), ["taken", width]
            build.graph.outputs.append(flat)
            outputs[site.rows.name] = flat.name
        found[site.name] = outputs[site.rows.name]
    if taken.outputs:
        build.graph.inputs.append(taken)
    return found
