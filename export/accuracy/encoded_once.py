"""Encode the same features once, however often torch generates from them.

``model.generate`` of Whisper runs the encoder to detect the language and again to generate, and an export generates
under several settings. The encoder reads a whole window however short its audio is, and takes most of the time of
generating a few tokens: half a minute of a core for a window of large-v3-turbo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tightbeam.export.checkpoint.load import Checkpoint

__all__ = ["encoded_once"]


@contextmanager
def encoded_once(checkpoint: Checkpoint) -> Iterator[None]:
    """Context in which the encoder of a model of windows runs once for equal features; other encoders always run."""
    if not checkpoint.family.has_windows:
        yield
        return
    encoder = checkpoint.model.get_encoder()
    forward = encoder.forward
    known: list[tuple[Tensor, Any]] = []

    def encode(input_features: Tensor, *args: Any, **kwargs: Any) -> Any:
        for features, states in known:
            if features.dtype == input_features.dtype and torch.equal(features, input_features):
                return type(states)(**states)  # a new one: `generate` repeats its states for the beams in place
        states = forward(input_features, *args, **kwargs)
        known.append((input_features, type(states)(**states)))
        return states

    with patch.object(encoder, "forward", encode):
        yield
