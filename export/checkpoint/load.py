"""Name or path -> checked torch model. A checkpoint is checked here before it is trusted.

Only safetensors are read, nothing is unpickled, no code of a checkpoint runs (`trust_remote_code` stays off).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.export.checkpoint.files import CheckpointFiles, check_whole, read_files
from tightbeam.export.checkpoint.languages import language_settings
from tightbeam.export.checkpoint.model import generation_settings, load_config, load_model
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.checkpoint.tokenizer import load_tokenizer
from tightbeam.export.families.base import Family
from tightbeam.graph_passes import Sizes

__all__ = ["Checkpoint", "load_checkpoint", "load_files"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and checked."""

    name: str
    """last component of the alias, hub id or path"""
    source: str
    """hub id, or the name of the folder, without its parents"""
    revision: str | None
    """commit on the hub, if known"""
    path: Path
    """local folder"""
    family: Family
    model: Any
    """the family's transformers class in eval mode, float32, with SDPA attention if it has any"""
    config: Any
    """transformers' config of the model"""
    sizes: Sizes
    generation_config: dict[str, Any]
    """the fields that the checkpoint sets, as JSON values, also those that an old one sets in config.json: the defaults
    of `model.generate`; a translator's languages too"""
    tokenizer: Any | None
    """transformers' tokenizer; None if the checkpoint ships none"""


def load_checkpoint(name_or_path: str | os.PathLike[str]) -> Checkpoint:
    """Read and check a checkpoint: ``load_files`` of what ``read_files`` finds.

    Parameters
    ----------
    name_or_path
        An alias, a hub id, a local folder, or `demo`.

    Raises
    ------
    ExportError
        Unknown model, another family or architecture, contradicting config values, no or damaged weights, a missing,
        extra or wrongly shaped tensor, NaN or infinite weights, a special id outside the vocabulary, a tokenizer that
        cannot be read or belongs to another model.
    """
    return load_files(read_files(name_or_path))


def load_files(files: CheckpointFiles) -> Checkpoint:
    """Read and check weights and tokenizer of a checkpoint. Raises ExportError as ``load_checkpoint``."""
    check_whole(files)
    family, folder = files.family, files.path
    with quiet_transformers():
        config = load_config(family, files.config_json, folder)
        tokenizer = load_tokenizer(folder, family.sizes(config).source_vocabulary)  # before the weights: it may fail
        model = load_model(family, config, folder)
        sizes = family.sizes(model.config)
    return Checkpoint(
        name=files.name,
        source=files.source,
        revision=files.revision,
        path=folder,
        family=family,
        model=model,
        config=model.config,
        sizes=sizes,
        generation_config={
            **generation_settings(family, model, folder, sizes.vocabulary),
            **language_settings(family, tokenizer, sizes.vocabulary),
        },
        tokenizer=tokenizer,
    )
