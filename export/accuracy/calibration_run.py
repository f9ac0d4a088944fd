"""Float32 graphs, and graphs of another precision, run over the same calibration inputs, step by step.

    encoder   all samples at once
    decoder   steps of all samples: the float32 graphs choose the tokens, and other graphs are fed the same ones

The weights are mapped from a file, and ONNX Runtime neither packs nor copies them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tightbeam.deploy.errors import RuntimeSetupError
from tightbeam.deploy.runtimes._onnxruntime import is_runtime_error, reason_of, register_library, session_options
from tightbeam.deploy.runtimes.base import resolve, sizes_of, small_inputs
from tightbeam.export.accuracy.compare import Prompts, Sources
from tightbeam.export.accuracy.reference import Samples, TextSamples
from tightbeam.export.checkpoint.audio import SpeechSamples
from tightbeam.export.counts import count, counted
from tightbeam.export.errors import ExportError
from tightbeam.export.writing.graphs import write_graphs
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.cleanup.search_head import LOGITS
from tightbeam.graph_passes.model import Array
from tightbeam.plugins.library import cpu_library

__all__ = ["MOST_ROWS", "TAKEN", "CalibrationRun", "Outputs", "apart", "evenly", "kullback_leibler"]

TAKEN = "guard.rows"
"""Input of an encoder with further outputs: the rows that these take of a product."""
MOST_ROWS = 256
"""Rows of a product that are measured: an error of 1 % is known to a twentieth of itself from far fewer."""
MOST_SAMPLES = 32
MOST_WINDOWS = 2
"""The same for synthetic audio and drawn pages, which are all alike and have up to 1,500 positions each."""
MOST_STEPS = 24


@dataclass
class Outputs:
    """What a run gives.

    Attributes
    ----------
    encoded, decoded : dict
        The encoder's outputs by name, and the requested ones of the decoder, steps one below the other.
    tokens : int64 [B, steps]
        The best token of each step.
    log_probabilities : float32 [B, steps, vocabulary]
        Of each token after the tokens so far; without scores zeros [B, steps, 1].
    """

    encoded: dict[str, Array]
    decoded: dict[str, Array]
    tokens: Array
    log_probabilities: Array


class CalibrationRun:
    """Calibration inputs, and how graphs are run over them.

    Parameters
    ----------
    samples
        Calibration inputs; a few are taken evenly if there are many.
    generation
        The checkpoint's generation settings, for the start token.
    beside
        Folder in which temporary ones are made for the weights.
    most_rows, most_steps
        Rows of each product that a run gives, and steps of the decoder, at most.
    scored
        Whether runs give the scores of all tokens, which take the vocabulary's bytes for each step.
    """

    def __init__(
        self,
        samples: Samples,
        generation: Mapping[str, Any],
        beside: Path,
        *,
        decoder_only: bool,
        most_rows: int = MOST_ROWS,
        most_steps: int = MOST_STEPS,
        scored: bool = True,
    ) -> None:
        self.inputs, self.prompts = _inputs(samples, decoder_only)
        self.beside, self.most_rows, self.most_steps, self.scored = beside, most_rows, most_steps, scored
        start = generation.get("decoder_start_token_id")
        self.start = (generation.get("bos_token_id") if start is None else start) or 0

    def __call__(self, graphs: ModelGraphs, forced: Array | None = None, wanted: Collection[str] = ()) -> Outputs:
        """Run graphs, which may have further inputs and outputs.

        Parameters
        ----------
        graphs
            The graphs of a variant, in float32 or int8.
        forced
            int64 [B, steps], the tokens to feed; None feeds the best ones.
        wanted
            Outputs of the decoder to keep of every step.

        Raises
        ------
        ExportError
            ONNX Runtime cannot run the graphs, or their scores are NaN or infinite.
        """
        scores: list[Array] = []
        with _written(graphs, self.beside) as folder:
            found = self._run(graphs, folder, forced, wanted, lambda logits: scores.append(log_softmax(logits)))
        return replace(found, log_probabilities=np.stack(scores, axis=1)) if self.scored else found

    def divergence(self, graphs: ModelGraphs, exact: Outputs, counted_steps: Array) -> float:
        """Mean of KL(exact || graphs) in nats a token, of graphs that are fed the same tokens.

        Parameters
        ----------
        graphs
            The graphs to measure.
        exact
            The outputs of the float32 graphs.
        counted_steps
            Bool [B, steps]: the steps to count.

        Returns
        -------
        float
            At least 0; infinity if scores are NaN or infinite at a token that ``exact`` allows.
        """
        terms: list[Array] = []

        def compare(logits: Array) -> None:
            terms.append(kullback_leibler(exact.log_probabilities[:, len(terms)], log_softmax(logits)))

        with _written(graphs, self.beside) as folder:
            self._run(graphs, folder, exact.tokens, (), compare)
        mean = float(np.stack(terms, axis=1)[counted_steps].mean())
        return max(0.0, mean) if np.isfinite(mean) else float("inf")

    def _run(
        self,
        graphs: ModelGraphs,
        folder: Path,
        forced: Array | None,
        wanted: Collection[str],
        on_logits: Callable[[Array], None],
    ) -> Outputs:
        inputs, prompts = dict(self.inputs), self.prompts
        B = len(next(iter(inputs.values())))
        mask = inputs.setdefault("attention_mask", np.ones((B, graphs.sizes.max_source), np.int64))
        positions = np.flatnonzero(mask)
        taken = positions[evenly(len(positions), self.most_rows)] if len(positions) else np.zeros(1, np.int64)
        count("encoding calibration inputs")
        session = _session(folder, "encoder")
        encoded = _named_outputs(session, {**inputs, "num_beams": np.ones(1, np.int64), TAKEN: taken})
        del session

        session = _session(folder, "decoder")
        P = 1 if prompts is None else prompts.tokens.shape[1]
        steps = max(1, min(self.most_steps, self.most_rows // B, graphs.sizes.max_target - P))
        sizes = sizes_of(B, mask.shape[1], 1, steps, P)
        step = small_inputs(sizes)
        step["normalize"][...], step["repetition_penalty"][...], step["candidates"][...] = True, 1, 1
        step["all_logits"][...] = self.scored
        step["beam_index"][:] = np.arange(B)
        step["tokens"][:, 0] = self.start if prompts is None else prompts.tokens[:, -1]
        if prompts is not None:
            step["first_positions"][:] = prompts.first_positions
        shapes = {tensor.name: (tensor.shape, tensor.dtype) for tensor in graphs.decoder.inputs}
        caches = {
            state.input: np.zeros(resolve(shapes[state.input][0], sizes), shapes[state.input][1])
            for state in graphs.states
        }
        kept: dict[str, list[Array]] = {name: [] for name in wanted}
        tokens = np.zeros((B, steps), np.int64)
        for T in counted(range(1, steps + 1), "steps of calibration inputs"):
            step["lengths"][:], step["history_lengths"][:] = T, P - 1 + T
            step["positions"][:, 0] = step["first_positions"] + T - 1
            outputs = _named_outputs(session, {"attention_mask": mask, **encoded, **step, **caches})
            for name, found in kept.items():
                found.append(outputs[name])
            caches = {state.input: outputs[state.output] for state in graphs.states}
            if self.scored:
                on_logits(outputs[LOGITS])
            tokens[:, T - 1] = outputs["candidate_tokens"][:, 0]
            step["tokens"][:, 0] = (tokens if forced is None else forced)[:, T - 1]
        unscored = np.zeros((B, steps, 1), np.float32)
        return Outputs(encoded, {name: np.concatenate(found) for name, found in kept.items()}, tokens, unscored)


@contextmanager
def _written(graphs: ModelGraphs, beside: Path) -> Iterator[Path]:
    """Context with a temporary folder of the graphs, in which errors of ONNX Runtime become ExportError."""
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=beside) as folder:
            write_graphs(graphs, Path(folder))
            yield Path(folder)
    except RuntimeSetupError as error:
        raise ExportError(str(error)) from error
    except OSError as error:
        raise ExportError(f"cannot write graphs to {beside} to measure them: {error.strerror}") from error
    except Exception as error:
        if not is_runtime_error(error):
            raise
        reason = reason_of(error)
        if reason.startswith("BeamTopK: logits["):
            raise ExportError(
                f"the model's scores are NaN or infinite ({reason}); restore or retrain the checkpoint"
            ) from error
        raise ExportError(
            f"ONNX Runtime {ort.__version__} cannot run the graphs to measure their products: {reason}; "
            "please report this with the checkpoint's config.json, unless memory is full"
        ) from error


def log_softmax(logits: Array) -> Array:
    """Log-probabilities float32 [R, vocabulary] of logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64))).astype(np.float32)


def kullback_leibler(exact: Array, other: Array) -> Array:
    """KL(exact || other) in nats, float64 [...], of log-probabilities [..., vocabulary]."""
    wanted = exact.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(np.isneginf(wanted), 0.0, np.exp(wanted) * (wanted - other)).sum(axis=-1))


def apart(samples: Samples) -> tuple[Samples, Samples]:
    """Two of three samples, to choose something, and every third, to measure it on inputs that did not choose it. Of a
    single one, and of audio and images, which are few, both parts have all."""
    if not isinstance(samples, TextSamples) or len(samples.rows) < 2:
        return samples, samples
    measured = range(1, len(samples.rows), 3)
    parts = ([index for index in range(len(samples.rows)) if index not in measured], measured)
    first, second = (
        replace(samples, texts=tuple(samples.texts[i] for i in part), rows=tuple(samples.rows[i] for i in part))
        for part in parts
    )
    return first, second


def evenly(count: int, most: int) -> Array:
    """At most ``most`` of the integers below ``count``, at even distances."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _inputs(samples: Samples, decoder_only: bool) -> tuple[dict[str, Array], Prompts | None]:
    """Inputs of the encoder by name, its mask among them, and the prompts of a decoder-only model."""
    if not isinstance(samples, TextSamples):
        given_by_user = isinstance(samples, SpeechSamples) and not samples.synthetic
        taken = evenly(len(samples.rows), MOST_SAMPLES if given_by_user else MOST_WINDOWS)
        features = samples.features.numpy()[taken].astype(np.float32)
        given: dict[str, Array] = {samples.name: features}
        if isinstance(samples, SpeechSamples):
            given["attention_mask"] = np.ones((len(features), samples.positions), np.int64)
        elif samples.mask is not None:
            given["attention_mask"] = samples.mask.numpy()[taken]
        return given, None
    rows = [samples.rows[index] for index in evenly(len(samples.rows), MOST_SAMPLES)]
    sources = Sources.of_rows(rows, decoder_only=decoder_only)
    return {"input_ids": sources.source, "attention_mask": sources.mask}, sources.prompts


def _session(folder: Path, name: str) -> ort.InferenceSession:
    options = session_options(None)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    register_library(options, cpu_library())
    return ort.InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])


def _named_outputs(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    outputs = session.run(None, {tensor.name: feeds[tensor.name] for tensor in session.get_inputs()})
    return dict(zip([tensor.name for tensor in session.get_outputs()], outputs, strict=True))
