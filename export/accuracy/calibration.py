"""Calibration: the activations on which the guard measures errors."""

from __future__ import annotations

import numpy as np

from tightbeam.export.accuracy.activations import AttentionActivations, decoder_activations
from tightbeam.export.accuracy.encoded_once import encoded_once
from tightbeam.export.accuracy.reference import Reference, Samples, TextSamples, greedy, samples_of
from tightbeam.export.checkpoint.audio import SpeechSamples
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.sample_texts import CALIBRATION_TEXTS
from tightbeam.export.errors import ExportError

__all__ = ["calibrate", "calibration_samples", "rounding_samples"]

MAX_ROUNDING_TOKENS = 128
"""Most tokens of a text on which matrices are rounded."""


def calibration_samples(checkpoint: Checkpoint, given: tuple[str, ...] | None) -> Samples:
    """Inputs on which errors are measured.

    Parameters
    ----------
    checkpoint
        The model.
    given
        Calibration texts of a model that reads text, or names of recordings for a speech model; None for the built-in
        texts, or synthetic audio.

    Raises
    ------
    ExportError
        No text fits, or a recording cannot be read.
    """
    return samples_of(checkpoint) if given is None else _given_samples(checkpoint, given)


def rounding_samples(checkpoint: Checkpoint, given: tuple[str, ...] | None) -> Samples:
    """Inputs on which matrices of integers are rounded and measured: as above, of more and longer built-in texts."""
    if given is None:
        return samples_of(checkpoint, CALIBRATION_TEXTS, longest=MAX_ROUNDING_TOKENS)
    return _given_samples(checkpoint, given, longest=MAX_ROUNDING_TOKENS)


def _given_samples(checkpoint: Checkpoint, given: tuple[str, ...], **longest: int) -> Samples:
    samples = samples_of(checkpoint, given, given, **longest)
    if isinstance(samples, TextSamples) and samples.as_ids:
        raise ExportError("every calibration text begins with a word too long for the model; give shorter ones")
    return samples


def calibrate(
    checkpoint: Checkpoint, given: tuple[str, ...] | None, reference: Reference | None = None
) -> tuple[list[AttentionActivations], list[AttentionActivations]]:
    """Record the activations of the decoder's attentions while the model generates.

    Parameters
    ----------
    checkpoint
        The model. Without a tokenizer it generates from random ids, which understate errors.
    given
        As of :func:`calibration_samples`.
    reference
        Generations of the comparison, which are used if they belong to these inputs.

    Returns
    -------
    tuple of two lists of AttentionActivations
        For each layer its cross-attention, and for each layer its self-attention.

    Raises
    ------
    ExportError
        No text fits, a recording cannot be read, or torch cannot generate.
    """
    samples = calibration_samples(checkpoint, given)
    with encoded_once(checkpoint):
        if reference is not None and _are_same(samples, reference.samples):
            targets = reference.greedy
        else:
            targets = greedy(checkpoint, samples)
        return decoder_activations(checkpoint, samples.arguments(checkpoint.model.dtype), targets)


def _are_same(samples: Samples, others: Samples) -> bool:
    """True for the same texts or the same audio. Images are always the comparison's."""
    if isinstance(samples, SpeechSamples) and isinstance(others, SpeechSamples):
        rows = samples.rows, others.rows
        return len(rows[0]) == len(rows[1]) and all(map(np.array_equal, *rows))
    return samples == others if isinstance(samples, TextSamples) else type(samples) is type(others)
