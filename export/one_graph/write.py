"""Write ``generate.onnx``, and the graphs that go with it, into a bundle's folder."""

from __future__ import annotations

from pathlib import Path

import onnx
import transformers
from tokenizers import Tokenizer

from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.bundle.manifest import FileEntry, Manifest
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.errors import ExportError
from tightbeam.export.one_graph.features import features_graph
from tightbeam.export.one_graph.graph import one_graph
from tightbeam.export.one_graph.graph_tokenizer import GraphTokenizer, of_class, of_file
from tightbeam.export.one_graph.text import text_graph

__all__ = ["ONE_GRAPH", "TEXT_GRAPH", "bundle_tokenizer", "write_graphs"]

FEATURES, ONE_GRAPH, TEXT_GRAPH = "features.onnx", "generate.onnx", "generate_text.onnx"


def write_graphs(folder: Path, manifest: Manifest, *, with_tokenizer: bool = False) -> Manifest:
    """Write the graph that generates, made of the folder's encoder and decoder, and the graphs that go with it.

    Parameters
    ----------
    folder
        A bundle's folder with all its files but ``bundle.json``.
    manifest
        The description of the files.
    with_tokenizer
        True to write the graph with the bundle's tokenizer too. The caller has compared the tokenizer as nodes with the
        tokenizer itself (`check_checkpoint_tokenizer`).

    Returns
    -------
    Manifest
        The same, with the new files. A model whose sources are windows of audio has a graph of its features too.

    Raises
    ------
    ExportError
        The checkpoint's settings ask for a rule that a graph does not have, or no operators do what the tokenizer does.
    OSError
        A file cannot be written.
    """
    encoder, decoder = (
        onnx.load(folder / entry.file, load_external_data=False) for entry in (manifest.encoder, manifest.decoder)
    )
    model, features = one_graph(manifest, encoder, decoder), None
    entries = {"one_graph": _saved(model, folder, ONE_GRAPH)}
    if manifest.speech is not None and manifest.has_windows:
        features = features_graph(LogMel.read(folder / manifest.speech.file))
        entries["features_graph"] = _saved(features, folder, FEATURES)
    if with_tokenizer:
        model = text_graph(model, bundle_tokenizer(folder, manifest), manifest, features)
        entries["text_graph"] = _saved(model, folder, TEXT_GRAPH)
    return manifest.model_copy(update=entries)


def _saved(model: onnx.ModelProto, folder: Path, name: str) -> FileEntry:
    onnx.save_model(model, folder / name)
    return file_entry(folder, name)


def bundle_tokenizer(folder: Path, manifest: Manifest) -> GraphTokenizer:
    """The tokenizer of a bundle. Raises ExportError if there is none, or no operators stand for it."""
    if manifest.tokenizer is None:
        raise ExportError("--with-tokenizer needs a tokenizer, which the checkpoint lacks; leave it out")
    files = folder / manifest.tokenizer.folder
    if manifest.tokenizer.kind == "tokenizers":
        return of_file(Tokenizer.from_file(str(files / "tokenizer.json")))
    return of_class(transformers.AutoTokenizer.from_pretrained(files, local_files_only=True))
