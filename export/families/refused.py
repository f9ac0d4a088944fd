"""Model types that no family covers: why, and the nearest family."""

from __future__ import annotations

__all__ = ["REFUSED"]

_EXPERTS = "its layers have experts, for which there is no operator; the nearest is"

REFUSED: dict[str, str] = {
    "florence2": "it is not written; the nearest are vision-encoder-decoder (TrOCR, Donut) and pix2struct",
    "moonshine_streaming": "its encoder keeps a state between parts of a recording; the nearest is moonshine",
    "gemma3": "images beside text are not written; the nearest is gemma3_text",
    "nllb-moe": f"{_EXPERTS} m2m_100, the dense NLLB-200",
    "switch_transformers": f"{_EXPERTS} t5, such as Flan-T5",
    "mixtral": f"{_EXPERTS} mistral",
    "qwen2_moe": f"{_EXPERTS} qwen2",
    "qwen3_moe": f"{_EXPERTS} qwen3",
    "olmoe": f"{_EXPERTS} olmo2",
    "gpt_oss": f"{_EXPERTS} llama",
}
"""A clause by ``model_type``, for the error."""
