"""A checkpoint's folder and JSON files, checked at once, without torch and transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tightbeam.deploy.bundle.manifest import MANIFEST
from tightbeam.export.checkpoint.config import (
    CONFIG_FILE,
    GENERATION_FILE,
    IMAGES,
    family_of,
    feature_settings,
    read_json,
    settings_file,
)
from tightbeam.export.checkpoint.declared import declared_config
from tightbeam.export.checkpoint.resolve import (
    DOWNLOAD_PATTERNS,
    SNAPSHOT,
    cached_id,
    checkpoint_name,
    hub_id_of,
    resolve,
)
from tightbeam.export.checkpoint.tokenizer_files import tokenizer_files
from tightbeam.export.checkpoint.weight_files import check_weight_files
from tightbeam.export.errors import ExportError
from tightbeam.export.families.base import Family
from tightbeam.graph_passes import Sizes

__all__ = ["CheckpointFiles", "check_whole", "read_files", "with_encoding"]


@dataclass(frozen=True)
class CheckpointFiles:
    """A checkpoint's folder, and what its JSON files say."""

    name: str
    """last component of the alias, hub id or path"""
    source: str
    """hub id, or the name of the folder, without its parents"""
    revision: str | None
    """commit on the hub, if the folder is a snapshot of it"""
    path: Path
    """local folder"""
    family: Family
    config_json: dict[str, Any]
    declared: SimpleNamespace
    """the config's fields over transformers' declared defaults"""
    sizes: Sizes
    generation: dict[str, Any]
    """the file that holds the generation settings, without fields that are null"""


def read_files(name_or_path: str | os.PathLike[str], patterns: Sequence[str] = DOWNLOAD_PATTERNS) -> CheckpointFiles:
    """Find a checkpoint, and read its config and generation settings.

    Parameters
    ----------
    name_or_path
        An alias, a hub id, a local folder, or `demo`.
    patterns
        Files to download of a model on the hub.

    Raises
    ------
    ExportError
        The checkpoint does not exist, a file is damaged, the family is not supported, or sizes contradict one another.
    """
    if (Path(name_or_path) / MANIFEST).is_file() and not (Path(name_or_path) / CONFIG_FILE).exists():
        raise ExportError(
            f"{os.fspath(name_or_path)} is a bundle, which export-model wrote; give the checkpoint that it was made of"
        )
    folder = resolve(name_or_path, patterns)
    config_json = read_json(folder / CONFIG_FILE)
    family = family_of(config_json, folder)
    if (folder / GENERATION_FILE).exists():  # transformers ignores a broken one
        read_json(folder / GENERATION_FILE)
    declared = declared_config(family.model_type, config_json)
    for reason in family.sizes_errors(declared):
        raise ExportError(f"{folder / CONFIG_FILE}: {reason}")
    settings = read_json(settings_file(folder))
    revision = folder.name if folder.parent.name == "snapshots" and SNAPSHOT.fullmatch(folder.name) else None
    return CheckpointFiles(
        name=checkpoint_name(name_or_path),
        source=hub_id_of(name_or_path) or cached_id(folder) or folder.name,
        revision=revision,
        path=folder,
        family=family,
        config_json=config_json,
        declared=declared,
        sizes=family.sizes(declared),
        generation={name: value for name, value in settings.items() if value is not None},
    )


def with_encoding(files: CheckpointFiles, *, global_tokens: int = 0, short_audio: bool = False) -> CheckpointFiles:
    """The files of a checkpoint whose family encodes sources as two options ask.

    Parameters
    ----------
    files
        The files.
    global_tokens
        The number of tokens at the beginning of a source that have global attention.
    short_audio
        True if a recording is encoded without the silence behind it.

    Raises
    ------
    ExportError
        The family has no weights for global attention, no source is as long, or the family has no windows that are
        filled with silence.
    """
    family = files.family
    if global_tokens and not family.takes_global_tokens:
        raise ExportError(
            f"global_tokens={global_tokens} is for LED, whose encoder has weights for global attention; "
            f"{family.model_type} has none, leave it out"
        )
    if global_tokens > files.sizes.max_source:
        raise ExportError(
            f"global_tokens={global_tokens} exceeds the model's {files.sizes.max_source} source positions; pass fewer"
        )
    if short_audio and not family.takes_short_audio:
        raise ExportError(
            f"short_audio is for Whisper, whose windows are filled with silence; {family.model_type} has none, "
            "leave it out"
        )
    return replace(files, family=replace(family, global_tokens=global_tokens, short_audio=short_audio))


def check_whole(files: CheckpointFiles) -> None:
    """Raise ExportError if files of weights, of a tokenizer or of feature settings are missing or damaged."""
    hub_id = files.source if "/" in files.source else None
    tokenizer_files(files.path)
    check_weight_files(files.path, files.family.architecture, hub_id)
    if files.family.feature_config is not None:
        feature_settings(files.path, files.family.feature_config)
    if files.family.image_config is not None:
        feature_settings(files.path, files.family.image_config, IMAGES)
