"""Real rows of every product: the float32 graphs run over calibration inputs, with the rows as further outputs.

    encoder   all samples at once; the same few hundred positions of each product, without padding
    decoder   greedy steps of all samples, whose rows are all taken

The weights are mapped from a file, and ONNX Runtime neither packs nor copies them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort

from tightbeam.deploy.compare import Prompts, Sources
from tightbeam.deploy.errors import RuntimeSetupError
from tightbeam.deploy.runtimes._onnxruntime import reason_of, register_library, session_options
from tightbeam.deploy.runtimes.base import resolve, sizes_of, small_inputs
from tightbeam.export.accuracy.reference import Samples, TextSamples
from tightbeam.export.checkpoint.audio import SpeechSamples
from tightbeam.export.counts import count, counted
from tightbeam.export.errors import ExportError
from tightbeam.export.writing.graphs import write_graphs
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.sites import Site
from tightbeam.plugins.library import cpu_library

__all__ = ["MOST_ROWS", "product_rows"]

NAME = "guard"
TAKEN = f"{NAME}.rows"
"""Input of the encoder: the rows to take of each product."""
MOST_ROWS = 256
"""Rows of a product that are measured: an error of 1 % is known to a twentieth of itself from far fewer."""
MOST_SAMPLES = 16
MOST_WINDOWS = 2
"""The same for audio, whose windows have up to 1,500 positions."""
MOST_STEPS = 24


def product_rows(
    graphs: ModelGraphs, sites: Sequence[Site], samples: Samples, generation: Mapping[str, Any], beside: Path
) -> dict[str, Array]:
    """Rows that each product multiplies while the model generates greedily.

    Parameters
    ----------
    graphs
        A variant's graphs in float32; they stay as they are.
    sites
        Their products and embeddings; embeddings have no rows.
    samples
        Calibration inputs; a few are taken evenly if there are many.
    generation
        The checkpoint's generation settings, for the start token.
    beside
        Folder in which a temporary one is made for the weights.

    Returns
    -------
    dict
        float32 [rows, X] by the name of the site, [rows, H X] of H heads; at most ``MOST_ROWS`` rows.

    Raises
    ------
    ExportError
        ONNX Runtime cannot run the graphs, or their scores are NaN or infinite.
    """
    tapped = graphs.copy()
    read = {
        name: _tap(Builder(graph, NAME), [site for site in sites if site.name.startswith(f"{name}.")], name)
        for name, graph in (("encoder", tapped.encoder), ("decoder", tapped.decoder))
    }
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=beside) as folder:
            write_graphs(tapped, Path(folder))
            return _run(tapped, read, _inputs(samples, graphs.sizes.decoder_only), generation, Path(folder))
    except RuntimeSetupError as error:
        raise ExportError(str(error)) from error
    except Exception as error:  # ONNX Runtime raises classes of its own, without a common base
        if "onnxruntime" not in type(error).__module__:
            raise
        reason = reason_of(error)
        if reason.startswith("BeamTopK: logits["):
            raise ExportError(
                f"the model's scores are NaN or infinite ({reason}); restore or retrain the checkpoint"
            ) from error
        raise ExportError(
            f"ONNX Runtime {ort.__version__} cannot run the float32 graphs to measure their products: {reason}; "
            "please report this with the checkpoint's config.json, unless memory is full"
        ) from error


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


def _inputs(samples: Samples, decoder_only: bool) -> tuple[dict[str, Array], Prompts | None]:
    """Inputs of the encoder by name, its mask among them, and the prompts of a decoder-only model."""
    if not isinstance(samples, TextSamples):
        taken = _evenly(len(samples.rows), MOST_WINDOWS)
        features = samples.features.numpy()[taken].astype(np.float32)
        given: dict[str, Array] = {samples.name: features}
        if isinstance(samples, SpeechSamples):
            given["attention_mask"] = np.ones((len(features), samples.positions), np.int64)
        elif samples.mask is not None:
            given["attention_mask"] = samples.mask.numpy()[taken]
        return given, None
    rows = [samples.rows[index] for index in _evenly(len(samples.rows), MOST_SAMPLES)]
    sources = Sources.of_rows(rows, decoder_only=decoder_only)
    return {"input_ids": sources.source, "attention_mask": sources.mask}, sources.prompts


def _evenly(count: int, most: int) -> Array:
    """At most ``most`` of the integers below ``count``, at even distances."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _session(folder: Path, name: str) -> ort.InferenceSession:
    options = session_options(None)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    register_library(options, cpu_library())
    return ort.InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])


def _run(
    graphs: ModelGraphs,
    read: Mapping[str, Mapping[str, str]],
    given: tuple[dict[str, Array], Prompts | None],
    generation: Mapping[str, Any],
    folder: Path,
) -> dict[str, Array]:
    inputs, prompts = given
    B = len(next(iter(inputs.values())))
    mask = inputs.setdefault("attention_mask", np.ones((B, graphs.sizes.max_source), np.int64))
    positions = np.flatnonzero(mask)
    taken = positions[_evenly(len(positions), MOST_ROWS)] if len(positions) else np.zeros(1, np.int64)
    feeds = {**inputs, "num_beams": np.ones(1, np.int64), TAKEN: taken}
    count("encoding calibration inputs")
    session = _session(folder, "encoder")
    encoded = _named_outputs(session, feeds)
    del session
    found = {site: encoded[output] for site, output in read["encoder"].items()}

    session = _session(folder, "decoder")
    P = 1 if prompts is None else prompts.tokens.shape[1]
    steps = max(1, min(MOST_STEPS, MOST_ROWS // B, graphs.sizes.max_target - P))
    sizes = sizes_of(B, mask.shape[1], 1, steps, P)
    step = small_inputs(sizes)
    step["normalize"][...], step["repetition_penalty"][...], step["candidates"][...] = True, 1, 1
    step["beam_index"][:] = np.arange(B)
    start = generation.get("decoder_start_token_id")
    start = generation.get("bos_token_id") if start is None else start
    step["tokens"][:, 0] = start or 0 if prompts is None else prompts.tokens[:, -1]
    if prompts is not None:
        step["first_positions"][:] = prompts.first_positions
    shapes = {tensor.name: (tensor.shape, tensor.dtype) for tensor in graphs.decoder.inputs}
    caches = {
        state.input: np.zeros(resolve(shapes[state.input][0], sizes), shapes[state.input][1]) for state in graphs.states
    }
    rows: dict[str, list[Array]] = {output: [] for output in read["decoder"].values()}
    for T in counted(range(1, steps + 1), "steps of calibration inputs"):
        step["lengths"][:], step["history_lengths"][:] = T, P - 1 + T
        step["positions"][:, 0] = step["first_positions"] + T - 1
        outputs = _named_outputs(session, {"attention_mask": mask, **encoded, **step, **caches})
        for output in rows:
            rows[output].append(outputs[output])
        caches = {state.input: outputs[state.output] for state in graphs.states}
        step["tokens"][:, 0] = outputs["candidate_tokens"][:, 0]
    decoded = {output: np.concatenate(parts) for output, parts in rows.items()}
    for site, output in read["decoder"].items():
        found[site] = decoded[output][_evenly(len(decoded[output]), MOST_ROWS)]
    return found


def _named_outputs(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    outputs = session.run(None, {tensor.name: feeds[tensor.name] for tensor in session.get_inputs()})
    return dict(zip([tensor.name for tensor in session.get_outputs()], outputs, strict=True))
