"""The outcome of a task by torch: ``model.generate``, and the logits of its forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import transformers

from tightbeam.deploy.arrays import Array
from tightbeam.export.accuracy.draws import bundle_draws
from tightbeam.export.accuracy.reference import Generation, Samples, TextSamples, generate
from tightbeam.export.checkpoint.audio import SpeechSamples
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tools.real_check.outcome import Outcome, Part
from tools.real_check.task import SAMPLING, SETTINGS, Rows, Task, scores_of

__all__ = ["BATCH", "SEED", "by_torch", "is_tie"]

SEED = 0
BATCH = 8
"""Rows that run together, on both sides."""


def by_torch(task: Task) -> Outcome:
    """Run a task with torch in float32. Raises what transformers raises."""
    found = {
        name: [each for rows in _batches(task.rows) for each in _generated(task, rows, name)] for name in task.names
    }
    sequences = {name: [row for row, _ in rows] for name, rows in found.items()}
    texts = {name: [text for _, text in rows] for name, rows in found.items()}
    with torch.no_grad(), quiet_transformers():
        recordings = [_segments(task, wave) for wave in task.waves]
        distributions = list(_distributions(task))
        return Outcome(sequences, texts, recordings, scores_of(task, distributions), distributions)


def is_tie(task: Task, name: str, index: int, sequence: list[int]) -> bool:
    """True if torch, in float64 and without other rows, generates this sequence: rounding alone decides there."""
    model = task.checkpoint.model
    try:
        model.double()
        return _generated(task, task.rows[index : index + 1], name)[0][0] == sequence
    finally:
        model.float()


def _batches(rows: Rows) -> Iterator[Rows]:
    return (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))


def _generated(task: Task, rows: Rows, name: str) -> list[tuple[list[int], str]]:
    """The sequence and the text of each row under a setting."""
    settings = {**task.settings, **SETTINGS[name]}
    draws = bundle_draws(rows, SEED, 1, settings["max_new_tokens"]) if name == SAMPLING else nullcontext()
    with draws:
        found: Generation = generate(task.checkpoint, _samples(task, rows), settings)
    return list(zip(found.sequences, found.texts or [""] * len(rows), strict=True))


def _samples(task: Task, rows: Rows) -> Samples:
    if task.is_speech:
        return SpeechSamples(tuple(rows), 0, torch.from_numpy(np.stack(rows)), 0)
    pad = task.checkpoint.generation_config.get("pad_token_id", next(iter(task.ends), 0))
    return TextSamples(("",) * len(rows), tuple(rows), False, pad if task.decoder_only else None)


def _segments(task: Task, wave: Array) -> list[Part]:
    """The segments of a recording by transformers' long-form generation, with times of tokens if it has any."""
    checkpoint = task.checkpoint
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint.path, local_files_only=True)
    how = {"truncation": False, "padding": "longest"} if len(wave) > extractor.n_samples else {}
    rate = {"sampling_rate": extractor.sampling_rate}
    given = extractor(wave, return_tensors="pt", return_attention_mask=True, **rate, **how)
    timed = checkpoint.generation_config.get("alignment_heads") is not None
    asked: dict[str, Any] = {"return_timestamps": True, "return_segments": True, "return_dict_in_generate": True}
    asked |= {"return_token_timestamps": True} if timed else {}
    settings = {**task.settings, "num_beams": 1, "do_sample": False, **asked}
    found = checkpoint.model.generate(given.input_features, attention_mask=given.attention_mask, **settings)
    return [
        Part(
            float(each["start"]),
            float(each["end"]),
            each["tokens"].tolist(),
            each["token_timestamps"].tolist() if timed else [],
        )
        for each in found["segments"][0]
    ]


def _distributions(task: Task) -> Iterator[Array]:
    """Log-probabilities float32 [T, vocabulary] at the scored tokens of each text, which runs alone."""
    scored, model = task.scored, task.checkpoint.model
    if scored is None:
        return
    for row, forced in zip(scored.rows, scored.forced, strict=True):
        if task.decoder_only:
            logits = model(torch.tensor([[*row, *forced]])).logits[0, len(row) - 1 : -1]
        else:
            source = (
                {"input_features": torch.from_numpy(row[None])}
                if task.is_speech
                else {"input_ids": torch.tensor([row])}
            )
            logits = model(**source, decoder_input_ids=torch.tensor([[task.start, *forced[:-1]]])).logits[0]
        yield logits.double().log_softmax(-1)[scored.given :].float().numpy()
