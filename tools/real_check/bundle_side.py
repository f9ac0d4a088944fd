"""The outcome of a task by a bundle: its runner, and the log-probabilities of its own search head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.arrays import Array, right_pad
from tightbeam.deploy.inputs.output import Output, output_of
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export.accuracy.compare import Sources, log_probabilities
from tools.real_check.outcome import Outcome, Part
from tools.real_check.task import SAMPLING, SETTINGS, Scored, Task, scores_of
from tools.real_check.torch_side import BATCH, SEED

__all__ = ["by_bundle"]


def by_bundle(task: Task, bundle: Bundle, threads: int) -> Outcome:
    """Run a task with a bundle.

    Raises
    ------
    BundleError, GenerationError
        The bundle cannot be loaded or run.
    """
    runner = Runner.load(bundle.path, threads=threads, verify=False)
    found = {name: _outputs(runner, task, name) for name in task.names}
    sequences = {name: [each.sequences[0] for each in outputs] for name, outputs in found.items()}
    texts = {name: [each.texts[0] if each.texts else "" for each in outputs] for name, outputs in found.items()}
    settings = {**task.settings, "num_beams": 1, "do_sample": False}
    settings |= {"return_token_timestamps": True} if bundle.manifest.alignment is not None else {}
    segments = runner.transcribe_segments(task.waves, batch_size=BATCH, **settings) if task.waves else []
    recordings = [
        [Part(own.start_s, own.end_s, own.tokens, own.token_timestamps or []) for own in parts] for parts in segments
    ]
    del runner
    distributions = list(_distributions(task, bundle, threads))
    return Outcome(sequences, texts, recordings, scores_of(task, distributions), distributions)


def _outputs(runner: Runner, task: Task, name: str) -> list[Output]:
    """The output of each row under a setting; rows join the running batch as others leave it."""
    settings = {**task.settings, **SETTINGS[name], **({"seed": SEED} if name == SAMPLING else {})}
    make: Any = runner.model.sample_of_features if task.is_speech else runner.sample
    samples = [make(number, row, settings) for number, row in enumerate(task.rows)]
    rows = BATCH * max(own.options.num_beams for own in samples)
    found = runner.scheduler(rows).run(samples)
    return [output_of(runner.model, found[own.number], own) for own in samples]


def _distributions(task: Task, bundle: Bundle, threads: int) -> Iterator[Array]:
    """Log-probabilities float32 [T, vocabulary] at the scored tokens of each text, which the bundle is fed with."""
    if task.scored is None:
        return
    runtime = OnnxRuntimeCpu(bundle, threads)
    vocabulary = bundle.manifest.sizes.vocabulary
    for start in range(0, len(task.scored.rows), BATCH):
        part = slice(start, start + BATCH)
        scored = Scored(task.scored.rows[part], task.scored.forced[part], task.scored.given)
        steps = max(map(len, scored.forced))
        forced, _ = right_pad([row or [0] for row in scored.forced])
        found, _ = log_probabilities(bundle, runtime, _sources(task, bundle, scored), steps, vocabulary, forced)
        for own, row in zip(found, scored.forced, strict=True):
            yield own[scored.given : len(row)].astype(np.float32)


def _sources(task: Task, bundle: Bundle, scored: Scored) -> Sources:
    if task.is_speech:
        mask = np.ones((len(scored.rows), bundle.manifest.sizes.max_source), np.int64)
        return Sources(np.stack(scored.rows), mask)
    return Sources.of_rows(scored.rows, decoder_only=task.decoder_only)
