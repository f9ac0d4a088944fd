"""A random run of beam search for the tests of passes, for graphs with any caches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort

from tightbeam.export.writing.graphs import write_graphs
from tightbeam.graph_passes import ModelGraphs

Array = Any


def random_run(generator: np.random.Generator, B: int, M: int, T: int, first: Array | None = None) -> dict[str, Any]:
    """Random beams that are reordered at every step but the first.

    Returns, by step, ``histories`` [R, step + 1], ``ancestries`` [B, M, step + 1], and ``rows`` [R]. ``first`` [R]: the
    tokens of the first step.
    """
    R = B * M
    parents = generator.integers(0, M, (T, B, M))
    parents[0] = np.arange(M)
    tokens = generator.integers(3, 90, (T, R))
    if first is not None:
        tokens[0] = first
    history = np.zeros((R, 0), dtype=np.int64)
    ancestry = np.zeros((B, M, 0), dtype=np.int32)
    run: dict[str, Any] = {"histories": [], "ancestries": [], "rows": []}
    for step in range(T):
        row = (parents[step] + np.arange(B)[:, None] * M).reshape(R)
        history = np.concatenate([history[row], tokens[step][:, None]], axis=1)
        ancestry = np.take_along_axis(ancestry, parents[step][:, :, None], axis=1)
        ancestry = np.concatenate([ancestry, np.tile(np.arange(M, dtype=np.int32), (B, 1))[:, :, None]], axis=2)
        for name, value in (("histories", history), ("ancestries", ancestry), ("rows", row)):
            run[name].append(value)
    return run


def sessions(graphs: ModelGraphs, folder: Path) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    """Encoder and decoder, written to ``folder`` and run by one thread."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    write_graphs(graphs, folder)
    paths = [str(folder / f"{name}.onnx") for name in ("encoder", "decoder")]
    first, second = (ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in paths)
    return first, second


def encoder_run(graphs: ModelGraphs, folder: Path, lengths: Sequence[int]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and outputs of the encoder by name, on random sources of these lengths, run by one thread."""
    folder.mkdir()
    session, _ = sessions(graphs, folder)
    generator = np.random.default_rng(0)
    B, N = len(lengths), max(lengths)
    feeds = {}
    for tensor in session.get_inputs():
        if tensor.name == "input_ids":
            feeds[tensor.name] = generator.integers(5, 90, (B, N))
        elif tensor.name == "attention_mask":
            feeds[tensor.name] = (np.arange(N) < np.array(lengths)[:, None]).astype(np.int64)
        else:
            feeds[tensor.name] = generator.standard_normal((B, *tensor.shape[1:])).astype(np.float32)
    names = [tensor.name for tensor in session.get_outputs()]
    return feeds, dict(zip(names, session.run(None, feeds), strict=True))


def empty_caches(decoder: gs.Graph, R: int, T_max: int) -> dict[str, Array]:
    """Generated caches of a decoder before the first step."""
    sizes = {"R": R, "T": 0, "T_max": T_max}
    return {
        tensor.name: np.zeros([sizes.get(size, size) for size in tensor.shape], dtype=np.float32)
        for tensor in decoder.inputs
        if tensor.name.startswith(("past.", "cache."))
    }


def step_feeds(run: dict[str, Any], step: int) -> dict[str, Array]:
    """Inputs of a decoder in one step of a run, without positions and caches."""
    B = len(run["ancestries"][step])
    return {
        "tokens": run["histories"][step][:, -1:],
        "ancestry": run["ancestries"][step],
        "lengths": np.full(B, step + 1, dtype=np.int32),
        "beam_index": run["rows"][step],
    }


def run_step(
    decoder: ort.InferenceSession, feeds: dict[str, Array], caches: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Logits [R, vocabulary] and the caches of the next step; ``feeds`` may have more than the decoder's inputs."""
    given = {**feeds, **caches}
    found = decoder.run(None, {tensor.name: given[tensor.name] for tensor in decoder.get_inputs()})
    named = dict(zip([tensor.name for tensor in decoder.get_outputs()], found, strict=True))
    logits = named["logits"].reshape(-1, named["logits"].shape[-1])
    return logits, {name: named[name.replace("past.", "present.").replace("cache.", "cache_out.")] for name in caches}
