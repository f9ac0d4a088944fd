"""A tiny Whisper whose timestamps occur: that of other tests, under another generation config."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from support.bundles.cache import BundleCache, with_generation
from support.checkpoints.families import WHISPER_GENERATION
from tightbeam.deploy import Runner
from tightbeam.deploy.bundle.manifest import MANIFEST
from tightbeam.export.checkpoint.quiet import quiet_transformers

__all__ = ["TIMESTAMPS", "generate", "with_timestamps", "written_with_timestamps"]

TIMESTAMPS: dict[str, Any] = {
    "_from_model_config": False,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 47, "<|de|>": 48, "<|fr|>": 49},
    "task_to_id": {"transcribe": 50, "translate": 51},
    "prev_sot_token_id": 52,
    "no_timestamps_token_id": 55,
    "max_initial_timestamp_index": 20,
    "max_length": 30,
    "eos_token_id": 45,
    "bos_token_id": 45,
    "pad_token_id": 45,
    "decoder_start_token_id": 46,
    "suppress_tokens": [5, 6, 46, 50, 51, 52, 53, 54],
    "begin_suppress_tokens": [9, 45],
    "alignment_heads": WHISPER_GENERATION["alignment_heads"],
}
"""Tokens in Whisper's order: text below 45, end, start, languages, tasks, no speech (54), timestamps from 56 on. A
window is one second, in 50 positions."""


def with_timestamps(bundles: BundleCache, variant: str, **changes: Any) -> tuple[Any, Runner]:
    """A copy of the model, and the runner of one variant, under `TIMESTAMPS`, in which ``changes`` replaces values.

    Other tests share the model itself, and to ask for the times of words changes its attention too.
    """
    checkpoint = bundles.trace("whisper", generation=WHISPER_GENERATION)[0]
    folder = bundles(variant, "whisper", generation=WHISPER_GENERATION)
    kept = {name: value for name, value in checkpoint.generation_config.items() if name not in WHISPER_GENERATION}
    settings = {**kept, **TIMESTAMPS, **changes}
    model = copy.deepcopy(checkpoint.model)
    model.generation_config = transformers.GenerationConfig(**settings)
    return model, with_generation(Runner.load(folder, threads=1), settings)


def written_with_timestamps(bundle: Path, root: Path) -> Path:
    """A copy of a bundle below ``root``, whose generation config is `TIMESTAMPS`."""
    folder = root / f"{bundle.name}-timestamps"
    shutil.copytree(bundle, folder)
    about = json.loads((folder / MANIFEST).read_text())
    about["generation"] = TIMESTAMPS
    (folder / MANIFEST).write_text(json.dumps(about))
    return folder


def generate(model: Any, features: torch.Tensor, **settings: Any) -> Any:
    """Output of ``model.generate`` for features."""
    with torch.no_grad(), quiet_transformers():
        return model.generate(features, **settings)
