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

__all__ = ["draws_of_ours", "torch_probabilities", "warpers_of"]


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


@contextmanager
def draws_of_ours(monkeypatch: pytest.MonkeyPatch, uniforms: Sequence[np.ndarray]) -> Iterator[None]:
    """Let `generate` draw row r's token t by the number ``uniforms[r][t]``, in the order of token ids."""
    step = 0

    def multinomial(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        nonlocal step
        assert num_samples == 1
        ends = probabilities.double().cumsum(dim=1)
        numbers = torch.tensor([row[step] for row in uniforms], dtype=torch.float64)[:, None]
        step += 1
        return (ends <= numbers * ends[:, -1:]).sum(dim=1, keepdim=True)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "multinomial", multinomial)
        yield
