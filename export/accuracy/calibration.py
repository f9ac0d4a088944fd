"""Calibration: the texts on whose activations the guard measures errors, from a file or those of the comparison."""

from __future__ import annotations

import os
from pathlib import Path

from tightbeam.export.accuracy.activations import AttentionActivations, decoder_activations
from tightbeam.export.accuracy.reference import Reference, TextSamples, greedy, samples_of
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.sample_texts import SAMPLE_TEXTS
from tightbeam.export.errors import ExportError

__all__ = ["MAX_TEXTS", "calibrate", "read_calibration"]

MAX_TEXTS = 64
"""Lines beyond these are not read: the error is a mean, for which a few dozen texts suffice."""


def read_calibration(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read a calibration file.

    Parameters
    ----------
    path
        A UTF-8 file, one text a line.

    Returns
    -------
    tuple of str
        The first ``MAX_TEXTS`` lines that hold text.

    Raises
    ------
    ExportError
        The file cannot be read, or has no text.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ExportError(f"calibration file {os.fspath(path)} cannot be read: {reason}; give a text file") from error
    lines = tuple(line for line in text.splitlines() if line.strip())
    if not lines:
        raise ExportError(f"calibration file {os.fspath(path)} has no line of text; give one text a line")
    return lines[:MAX_TEXTS]


def calibrate(
    checkpoint: Checkpoint, texts: tuple[str, ...] | None, reference: Reference | None = None
) -> tuple[list[AttentionActivations], list[AttentionActivations]]:
    """Record the activations of the decoder's attentions while the model generates.

    Parameters
    ----------
    checkpoint
        The model. Without a tokenizer it generates from random ids, which understate errors.
    texts
        Calibration texts; None for the built-in ones.
    reference
        Generations of the built-in texts, where the comparison has made them already.

    Returns
    -------
    tuple of two lists of AttentionActivations
        For each layer its cross-attention, and for each layer its self-attention.

    Raises
    ------
    ExportError
        The checkpoint cannot take calibration texts, no text fits, or torch cannot generate.
    """
    if texts is not None and checkpoint.tokenizer is None:
        raise ExportError("the checkpoint has no tokenizer to read calibration texts with; leave the file out")
    if texts is not None and checkpoint.family.is_speech:
        raise ExportError("this is a speech model, measured on synthetic audio; leave --calibration out")
    if texts is None and reference is not None:
        samples, targets = reference.samples, reference.greedy
    else:
        samples = samples_of(checkpoint, SAMPLE_TEXTS if texts is None else texts)
        if texts is not None and isinstance(samples, TextSamples) and samples.as_ids:
            raise ExportError("every calibration text begins with a word too long for the model; give shorter ones")
        targets = greedy(checkpoint, samples)
    return decoder_activations(checkpoint, samples.arguments(checkpoint.model.dtype), targets)
