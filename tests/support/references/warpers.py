"""The warpers of transformers as `generate` sets them up, and the draws of `generate` made those of a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.utils import GenerationMixin

__all__ = ["draws_of_ours", "torch_probabilities", "torch_scores", "warpers_of"]


class _Model(GenerationMixin):  # type: ignore[misc]
    """The part of a model that the processors' list is made from."""

    config = type("Config", (), {"is_encoder_decoder": True})()


def warpers_of(settings: dict[str, Any]) -> LogitsProcessorList:
    """The processors of ``generate(do_sample=True, **settings)``, from transformers' own list and in its order."""
    config = GenerationConfig(**{"do_sample": True, "top_k": 50, **settings})
    ends = config.eos_token_id
    config._eos_token_tensor = None if ends is None else torch.tensor([ends] if isinstance(ends, int) else ends)
    made: LogitsProcessorList = _Model()._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    return made


def torch_probabilities(settings: dict[str, Any], history: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The probabilities [R, vocabulary] that `generate` draws with, after ``history`` int64 [R, T]."""
    scores = warpers_of(settings)(torch.from_numpy(history), torch.from_numpy(logits.astype(np.float32)))
    found: np.ndarray = torch.softmax(scores, dim=-1).numpy()
    return found


def torch_scores(settings: dict[str, Any], logits: np.ndarray) -> np.ndarray:
    """The warped log-probabilities [R, vocabulary] that beam search of `generate` adds up."""
    scores = torch.log_softmax(torch.from_numpy(logits.astype(np.float32)), dim=-1)
    found: np.ndarray = warpers_of(settings)(torch.zeros(len(logits), 1, dtype=torch.long), scores).numpy()
    return found


@contextmanager
def draws_of_ours(monkeypatch: pytest.MonkeyPatch, uniforms: Sequence[np.ndarray]) -> Iterator[None]:
    """Let `generate` draw row r by its numbers ``uniforms[r]``, in the order of token ids (with beams, of beams first).

    A step takes as many numbers of a row as it draws. Where nothing has a probability any more, the first of the rest
    is taken, of which torch takes any.
    """
    step = 0

    def multinomial(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        nonlocal step
        left, drawn = probabilities.double().clone(), []
        for number in range(step, step + num_samples):
            ends = left.clamp(min=0).cumsum(dim=1)
            numbers = torch.tensor([row[number] for row in uniforms], dtype=torch.float64)[:, None]
            place = (ends <= numbers * ends[:, -1:]).sum(dim=1, keepdim=True)
            rest = (left == 0).int().argmax(dim=1, keepdim=True)
            drawn.append(torch.where(ends[:, -1:] > 0, place, rest))
            left.scatter_(1, drawn[-1], -1)
        step += num_samples
        return torch.cat(drawn, dim=1)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "multinomial", multinomial)
        yield
