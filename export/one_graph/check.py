"""The comparison of ``generate.onnx`` with ``model.generate``: the graph runs in ONNX Runtime, without our library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import helper

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runtimes._onnxruntime import is_runtime_error
from tightbeam.export.accuracy.parity import is_exact, is_tie
from tightbeam.export.accuracy.reference import SEED, Generation, Reference
from tightbeam.export.checkpoint.sample_texts import SAMPLE_TEXTS
from tightbeam.export.errors import ExportError
from tightbeam.export.one_graph.graph import PROMPT_INPUT, SCALARS, options_of, scalars_of
from tightbeam.export.one_graph.graph_tokenizer import GraphTokenizer
from tightbeam.export.one_graph.text import BROKEN, session_with_text
from tightbeam.export.one_graph.write import TEXT_GRAPH, bundle_tokenizer
from tightbeam.graph_passes.model import Array

__all__ = ["check_one_graph", "check_text_graph", "scalar_inputs"]

SHORT = 8
"""New tokens of the graph with a tokenizer."""


def check_one_graph(path: Path, manifest: Manifest, reference: Reference) -> None:
    """Run the graph on the inputs of a reference, and compare the tokens.

    Settings that draw are left out: the graph has random numbers of its own.

    Parameters
    ----------
    path
        The graph, beside its weights.
    manifest
        The bundle's description.
    reference
        Inputs, and what torch generated from them.

    Raises
    ------
    ExportError
        ONNX Runtime cannot run the graph, or a sequence of an exact bundle differs.
    """
    with _runs("the one graph", "--one-graph"):
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = _source(session, manifest, reference)
        for made in reference.generations:
            if SEED not in made.settings:
                _compare(session, manifest, reference, made, inputs)


def check_text_graph(folder: Path, manifest: Manifest) -> None:
    """Run the graph with a tokenizer, and compare the texts that it writes with the decoding of the tokens beside them.

    The tokenizer and the tokens are compared by themselves, by ``check_tokenizer`` and `check_one_graph`. For speech
    and images the graph is loaded, and does not run.

    Parameters
    ----------
    folder
        The bundle's folder.
    manifest
        The bundle's description.

    Raises
    ------
    ExportError
        ONNX Runtime cannot run the graph, or a text differs.
    """
    with _runs("the graph with a tokenizer", "--with-tokenizer"):
        session = session_with_text(folder / TEXT_GRAPH)
        if manifest.reads_text:
            _compare_texts(session, bundle_tokenizer(folder, manifest), manifest)


@contextmanager
def _runs(graph: str, option: str) -> Iterator[None]:
    """Raise ExportError for an error of ONNX Runtime."""
    try:
        yield
    except Exception as error:
        if not is_runtime_error(error):
            raise
        reason = str(error).splitlines()[0]
        raise ExportError(
            f"{graph} does not run: {reason}; please report this with the checkpoint's config.json, and leave "
            f"{option} out"
        ) from error


def _settings(session: ort.InferenceSession, options: GenerationOptions, samples: int) -> dict[str, Array]:
    """The inputs of a graph besides its sources."""
    settings = scalar_inputs(scalars_of(options))
    if any(each.name == PROMPT_INPUT for each in session.get_inputs()):
        settings[PROMPT_INPUT] = np.tile(np.array(options.prompt, np.int64), (samples, 1))
    return settings


def _compare_texts(session: ort.InferenceSession, tokenizer: GraphTokenizer, manifest: Manifest) -> None:
    options, sources = options_of(manifest), list(SAMPLE_TEXTS[:2])
    inputs = {"text": np.array(sources, object), **_settings(session, options, len(sources))}
    inputs["max_new_tokens"] = np.array(SHORT)
    texts, sequences, lengths, _ = session.run(None, inputs)
    prompts = [len(tokenizer.encode(source, None)) for source in sources]
    given = max(prompts) if manifest.sizes.decoder_only else len(options.prompt)
    for text, tokens, length in zip(texts, sequences, lengths, strict=True):
        expected = tokenizer.decode(tokens[given:length].tolist())
        if text != expected and BROKEN not in expected:
            raise ExportError(
                f"the graph with a tokenizer writes {text!r}, expected {expected!r}; please report this with the "
                "checkpoint's tokenizer.json, and leave --with-tokenizer out"
            )


def _compare(
    session: ort.InferenceSession,
    manifest: Manifest,
    reference: Reference,
    made: Generation,
    inputs: Mapping[str, Array],
) -> None:
    """Compare the sequences of one setting, which the graph makes of ``inputs``."""
    options = options_of(manifest, {name: value for name, value in made.settings.items() if name != "do_sample"})
    samples = len(next(iter(inputs.values())))
    sequences, lengths, scores = session.run(None, {**inputs, **_settings(session, options, samples)})
    returned = len(sequences) // samples
    given = inputs["input_ids"].shape[1] if manifest.sizes.decoder_only else 0
    for index in range(samples):
        row = index * returned
        tokens = sequences[row, given : lengths[row]].tolist()
        record = {"tokens": tokens, "score": float(scores[row]) if made.scores is not None else None}
        if tokens == made.sequences[index] or not is_exact(manifest) or is_tie(reference, made, record, index):
            continue
        raise ExportError(
            f"the one graph does not generate what torch does (sample {index}, settings {made.settings}): {tokens}, "
            f"expected {made.sequences[index]}; please report this with the checkpoint's config.json, and leave "
            "--one-graph out"
        )


def _source(session: ort.InferenceSession, manifest: Manifest, reference: Reference) -> dict[str, Array]:
    """The inputs of the graph for the samples of a reference."""
    names = {each.name for each in session.get_inputs()}
    arguments = {
        {"inputs": "input_ids"}.get(name, name): value.numpy()
        for name, value in reference.samples.arguments(torch.float32).items()
        if isinstance(value, torch.Tensor)
    }
    inputs = {name: value for name, value in arguments.items() if name in names}
    if "attention_mask" in names and "attention_mask" not in inputs:
        features = next(iter(inputs.values()))
        positions = manifest.source_positions(features.shape[1])
        inputs["attention_mask"] = np.ones((len(features), positions), np.int64)
    return inputs


def scalar_inputs(values: Mapping[str, Any]) -> dict[str, Array]:
    """The scalar inputs of the graph as arrays of their types."""
    return {name: np.array(values[name], helper.tensor_dtype_to_np_dtype(kind)) for name, kind in SCALARS.items()}
