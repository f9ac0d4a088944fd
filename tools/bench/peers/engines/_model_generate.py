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
        longest, pad = max(map(len, samples)), model.config.pad_token_id
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in samples])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in samples])
        return {"input_ids": ids, "attention_mask": mask}

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        with torch.inference_mode():
            return model.generate(**batch, **job["settings"]).tolist()

    return prepare, generate
