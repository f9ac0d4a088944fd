"""transformers in float32, with its default attention."""

from __future__ import annotations

from typing import Any

from tools.bench.peers.engines._model_generate import calls_of

PACKAGES = ("transformers", "torch")


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    import torch
    import transformers

    torch.set_num_threads(threads)
    auto = transformers.AutoModelForSpeechSeq2Seq if speech else transformers.AutoModelForSeq2SeqLM
    return calls_of(auto.from_pretrained(folder, dtype=torch.float32).eval(), speech)
