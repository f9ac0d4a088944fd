"""Torch encodes the features of an export once, and generates from them what it would have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.checkpoints.families import WHISPER_GENERATION, CheckpointCache
from tightbeam.export.accuracy.calibration import calibrate
from tightbeam.export.accuracy.reference import generate, make_reference, samples_of
from tightbeam.export.checkpoint.load import load_checkpoint


def test_a_window_is_encoded_once_for_all_settings(
    checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = load_checkpoint(checkpoints("whisper", generation=WHISPER_GENERATION))
    samples = samples_of(checkpoint)
    encoder = checkpoint.model.get_encoder()
    calls: list[int] = []
    forward = encoder.layer_norm.forward

    def counted(states: torch.Tensor) -> Any:
        calls.append(len(states))
        return forward(states)

    monkeypatch.setattr(encoder.layer_norm, "forward", counted)
    reference = make_reference(checkpoint, samples)
    assert len(reference.generations) > 1
    assert calls == [len(samples.rows)]
    for found in reference.generations:
        alone = generate(checkpoint, samples, found.settings)
        assert (alone.sequences, alone.scores) == (found.sequences, found.scores)
    assert len(calls) > len(reference.generations)
    calls.clear()
    calibrate(checkpoint, None)
    assert calls == [len(samples.rows)]
