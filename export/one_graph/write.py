"""Write ``generate.onnx`` into a bundle's folder."""

from __future__ import annotations

from pathlib import Path

import onnx
from tokenizers import Tokenizer

from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.errors import ExportError
from tightbeam.export.one_graph.features import features_graph
from tightbeam.export.one_graph.graph import one_graph
from tightbeam.export.one_graph.text import check_tokenizer, longest_text, text_graph, uncut
from tightbeam.export.one_graph.tokenizer import FIX

__all__ = ["ONE_GRAPH", "TEXT_GRAPH", "bundle_tokenizer", "write_features_graph", "write_one_graph", "write_text_graph"]

FEATURES, ONE_GRAPH, TEXT_GRAPH = "features.onnx", "generate.onnx", "generate_text.onnx"


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


def write_features_graph(folder: Path, manifest: Manifest) -> Manifest:
    """Write the graph that makes Whisper's features of samples.

    Parameters
    ----------
    folder
        A bundle's folder with all its files but ``bundle.json``.
    manifest
        The description of the files.

    Returns
    -------
    Manifest
        The same, with the new file; as it was, if the model's sources are not windows of audio.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    if manifest.speech is None or not manifest.has_windows:
        return manifest
    onnx.save_model(features_graph(LogMel.read(folder / manifest.speech.file)), folder / FEATURES)
    return manifest.model_copy(update={"features_graph": file_entry(folder, FEATURES)})


def write_text_graph(folder: Path, manifest: Manifest) -> Manifest:
    """Write the graph that generates text, made of ``generate.onnx`` and the bundle's tokenizer.

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
        The tokenizer in a graph does not give what the bundle's gives.
    OSError
        The file cannot be written.
    """
    tokenizer = bundle_tokenizer(folder, manifest)
    check_tokenizer(tokenizer, longest_text(manifest.sizes), encodes=manifest.reads_text)
    model = onnx.load(folder / ONE_GRAPH, load_external_data=False)
    features = None if manifest.features_graph is None else onnx.load(folder / manifest.features_graph.file)
    onnx.save_model(text_graph(model, tokenizer, manifest, features), folder / TEXT_GRAPH)
    return manifest.model_copy(update={"text_graph": file_entry(folder, TEXT_GRAPH)})


def bundle_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer of a bundle, without truncation and padding. Raises ExportError if ``tokenizer.json`` is not all of
    it."""
    if manifest.tokenizer is None:
        raise ExportError("--with-tokenizer needs a tokenizer, which the checkpoint lacks; leave it out")
    if manifest.tokenizer.kind != "tokenizers":
        raise ExportError(f"the tokenizer cannot be put into a graph: it needs transformers' own class; {FIX}")
    return uncut(Tokenizer.from_file(str(folder / manifest.tokenizer.folder / "tokenizer.json")))
