"""Batches for everything that has the ``generate`` of transformers."""

from __future__ import annotations

from typing import Any

__all__ = ["calls_of"]


def calls_of(model: Any, speech: bool) -> tuple[Any, Any]:
    """Return how to prepare and to run a batch of a model in PyTorch's tensors."""
    import torch

    def prepare(samples: Any) -> Any:
        if speech:
            return {"input_features": torch.from_numpy(samples)}
        longest, on_right = max(map(len, samples)), model.config.is_encoder_decoder

        def padded(rows: Any, value: int) -> Any:
            fill = [[value] * (longest - len(row)) for row in rows]
            return torch.tensor([row + own if on_right else own + row for row, own in zip(rows, fill, strict=True)])

        ones = [[1] * len(row) for row in samples]
        pad = model.generation_config.pad_token_id or 0
        return {"input_ids": padded(samples, pad), "attention_mask": padded(ones, 0)}

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        given = 0 if model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        with torch.inference_mode():
            return model.generate(**batch, **job["settings"])[:, given:].tolist()

    return prepare, generate
