"""The texts on whose activations the guard measures: a file's, or those of the comparison with torch."""

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
"""Lines of a calibration file beyond these are not read: the error is a mean, which a few dozen texts settle."""


def read_calibration(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The lines of a UTF-8 file that hold text, ``MAX_TEXTS`` at most. Raises ExportError where there are none."""
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
    """Activations of every layer's cross-attention and self-attention while the model generates from ``texts``, or from
    the comparison's own; from random ids, which understate errors, where a checkpoint has no tokenizer. ``reference``:
    what the comparison has generated already.

    Raises ExportError for texts without a tokenizer, and where torch cannot generate.
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
            raise ExportError("no calibration text begins with a word that the model has room for; give shorter ones")
        targets = greedy(checkpoint, samples)
    return decoder_activations(checkpoint, samples.arguments(checkpoint.model.dtype), targets)
