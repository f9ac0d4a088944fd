"""Write ``generate.onnx`` into a bundle's folder."""

from __future__ import annotations

from pathlib import Path

import onnx

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.one_graph.graph import one_graph

__all__ = ["ONE_GRAPH", "write_one_graph"]

ONE_GRAPH = "generate.onnx"


def write_one_graph(folder: Path, manifest: Manifest) -> Manifest:
    """Write the graph that generates, made of the folder's encoder and decoder.

    Parameters
    ----------
    folder
        A bundle's folder with all its files but ``bundle.json``.
    manifest
        The description of the files.

    Returns
    -------
    Manifest
        The same, with the new file.

    Raises
    ------
    ExportError
        The checkpoint's settings ask for a rule that a graph does not have.
    OSError
        The file cannot be written.
    """
    encoder, decoder = (
        onnx.load(folder / entry.file, load_external_data=False) for entry in (manifest.encoder, manifest.decoder)
    )
    onnx.save_model(one_graph(manifest, encoder, decoder), folder / ONE_GRAPH)
    return manifest.model_copy(update={"one_graph": file_entry(folder, ONE_GRAPH)})
