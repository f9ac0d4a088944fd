"""The models of the soak: the demo, a tiny Whisper and a tiny TrOCR, written as a model repository."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    TrOCRConfig,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

__all__ = ["DEADLINE_S", "DEMO", "LIVE", "SOURCES", "TROCR", "WHISPER", "write_repository"]

EXPORTED = Path(__file__).resolve().parents[2] / "export" / "demo"
DEMO, LIVE, WHISPER, TROCR = "demo", "live", "whisper", "trocr"
SOURCES = {DEMO: "TEXT", LIVE: "TEXT", WHISPER: "AUDIO_FILE", TROCR: "IMAGE"}
"""The input of each served model. `LIVE` is the demo as a model that streams."""
DEADLINE_S = 60
"""The models' deadline."""
CHUNK_S, MELS, POSITIONS = 5, 80, 250
"""Seconds of a window, mel bins and encoder positions of the tiny Whisper."""
END, START, FIRST_LANGUAGE, TASKS, NO_TIMESTAMPS = 100, 101, 102, 105, 110
"""Special tokens of the tiny Whisper: text below, timestamps behind."""
GENERATION: dict[str, Any] = {
    "_from_model_config": False,  # transformers would drop the rest
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": FIRST_LANGUAGE + place for place, code in enumerate(("en", "de", "fr"))},
    "task_to_id": {"transcribe": TASKS, "translate": TASKS + 1},
    "prev_sot_token_id": 107,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "max_initial_timestamp_index": 50,
    "max_length": 40,
    "suppress_tokens": [5, 6, START, TASKS, TASKS + 1, 107, 108, 109],
    "begin_suppress_tokens": [9, END],
    "alignment_heads": [[0, 1], [1, 0]],
}


def write_repository(root: Path) -> tuple[Path, dict[str, Path]]:
    """Export the three models below ``root``, unless they are there; serve them in a repository.

    Returns the repository, and the bundles by the models' names.
    """
    bundles = {
        name: _exported(make, root / name) for name, make in ((DEMO, None), (WHISPER, _whisper), (TROCR, _trocr))
    }
    bundles[LIVE] = bundles[DEMO]
    shutil.rmtree(root / "models", ignore_errors=True)
    for name, bundle in bundles.items():
        stream = ["--stream"] if name == LIVE else []
        served = [str(bundle), str(root / "models"), "--name", name, "--deadline-s", str(DEADLINE_S), *stream]
        _run("triton-repo", *served)
    return root / "models", bundles


def _exported(make: Callable[[Path], Path] | None, bundle: Path) -> Path:
    if not bundle.exists():
        checkpoint = make(bundle.with_name(f"{bundle.name}-checkpoint")) if make else "demo"
        _run("export-model", str(checkpoint), "--variant", "dedup", "--output", str(bundle))
    return bundle


def _run(command: str, *arguments: str) -> None:
    program = Path(sys.executable).parent / command
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"error: {command} {' '.join(arguments)} failed:\n{ended.stdout}{ended.stderr}")


def _whisper(folder: Path) -> Path:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "d_model": 48,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "vocab_size": 362,
    }
    layers: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    tokens: dict[str, Any] = {
        "pad_token_id": END,
        "bos_token_id": END,
        "eos_token_id": END,
        "decoder_start_token_id": START,
    }
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            **{**sizes, **layers, **tokens},
            num_mel_bins=MELS,
            max_source_positions=POSITIONS,
            max_target_positions=96,
            init_std=0.3,
        )
    )
    for name, value in {**GENERATION, **tokens}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    hop = 16_000 * CHUNK_S // (2 * POSITIONS)
    WhisperFeatureExtractor(feature_size=MELS, chunk_length=CHUNK_S, hop_length=hop).save_pretrained(folder)
    return folder


def _trocr(folder: Path) -> Path:
    """A TrOCR with the demo's tokenizer."""
    torch.manual_seed(2)
    tokens: dict[str, Any] = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    encoder = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        initializer_range=0.3,
    )
    decoder = TrOCRConfig(
        **tokens,
        vocab_size=1400,
        d_model=48,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=96,
        max_position_embeddings=64,
        cross_attention_hidden_size=32,
        init_std=0.3,
    )
    model = VisionEncoderDecoderModel(VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))
    for name, value in {**tokens, "max_length": 32, "num_beams": 2}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    settings = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    settings |= {"resample": 2, "size": 32, "feature_extractor_type": "ViTFeatureExtractor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EXPORTED / name, folder)
    return folder
