"""Logits of a random run in any precision: of a variant's graphs, and of torch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from support.passes.runs import empty_caches, random_run, run_step, sessions, step_feeds
from tightbeam.graph_passes import ModelGraphs

B, M, T = 3, 2, 6
R = B * M
COUNTS = (9, 4, 2)
"""Tokens of each source; the last of each is the first of the run in a decoder-only model."""
Array = Any


def source_run(model: Any, folder: Any) -> dict[str, Any]:
    """Sources, as tokens or as Whisper's features, and a random run over them."""
    generator = np.random.default_rng(3)
    config = model.config
    run: dict[str, Any] = {"folder": folder, "counts": np.array(COUNTS), "causal": not config.is_encoder_decoder}
    if hasattr(config, "num_mel_bins"):
        N = config.max_source_positions
        run["features"] = generator.standard_normal((B, config.num_mel_bins, 2 * N)).astype(np.float32)
        run["mask"] = np.ones((B, N), np.int64)
    else:
        run["ids"] = generator.integers(3, 90, (B, max(COUNTS)))
        run["mask"] = (np.arange(max(COUNTS)) < run["counts"][:, None]).astype(np.int64)
    first = np.repeat(run["ids"][np.arange(B), run["counts"] - 1], M) if run["causal"] else None
    return {**run, **random_run(generator, B, M, T, first)}


def logits_of(graphs: ModelGraphs, run: dict[str, Any]) -> Array:
    """Logits float32 [T, R, vocabulary] of graphs without a search head, with inputs of any type."""
    encoder, decoder = sessions(graphs, run["folder"])
    lengths = run["counts"] - 1 if run["causal"] else run["counts"]
    width = lengths.max() if run["causal"] else run["mask"].shape[1]
    mask = run["mask"] if "features" in run else (np.arange(width) < lengths[:, None]).astype(np.int64)
    given = {"attention_mask": mask, "num_beams": np.array([M])}
    given |= {"input_features": run["features"]} if "features" in run else {"input_ids": run["ids"][:, :width]}
    constant = _run(encoder, given) | {"attention_mask": mask, "first_positions": lengths.astype(np.int32)}
    by_name = {tensor.name: tensor for tensor in graphs.decoder.inputs}
    if "attention_mask" in by_name and by_name["attention_mask"].shape[0] == "R":
        constant["attention_mask"] = np.repeat(mask, M, axis=0)
    start = np.repeat(lengths, M)[:, None] if run["causal"] else np.zeros((R, 1), np.int64)
    caches = {name: cache.astype(by_name[name].dtype) for name, cache in empty_caches(graphs.decoder, R, T + 2).items()}
    logits = []
    for step in range(T):
        feeds = {**constant, **step_feeds(run, step), "positions": start + step}
        found, caches = run_step(decoder, feeds, caches)
        logits.append(found.astype(np.float32))
    return np.stack(logits)


def _run(session: ort.InferenceSession, given: dict[str, Array]) -> dict[str, Array]:
    names = [tensor.name for tensor in session.get_outputs()]
    return dict(zip(names, session.run(None, {t.name: given[t.name] for t in session.get_inputs()}), strict=True))


def torch_logits(model: Any, run: dict[str, Any], dtype: torch.dtype) -> Array:
    """Logits [T, R, vocabulary] of torch in ``dtype``, row by row without padding; in steps with a cache where there is
    an encoder, since ProphetNet is another model without one."""
    own = copy.deepcopy(model).to(dtype)  # the model is shared, and rounding changes it in place
    with torch.no_grad():
        found = [[_row(own, run, row, history[row]) for row in range(R)] for history in run["histories"]]
    return np.array(found)


def _row(model: Any, run: dict[str, Any], row: int, history: Array) -> Array:
    sample = row // M
    count = run["counts"][sample]
    if run["causal"]:
        tokens = np.concatenate([run["ids"][sample, : count - 1], history])
        return model(torch.tensor(tokens)[None]).logits[0, -1].double().numpy()
    if "features" in run:
        source = torch.tensor(run["features"][sample : sample + 1]).to(model.dtype)
    else:
        source = torch.tensor(run["ids"][sample : sample + 1, :count])
    states = model.get_encoder()(source)
    past = None
    for token in history:
        found = model(
            encoder_outputs=states,
            decoder_input_ids=torch.tensor([[token]]),
            cache=past,
            use_cache=True,
        )
        past = found.cache
    return found.logits[0, -1].double().numpy()
