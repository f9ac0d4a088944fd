"""What a checkpoint's generation settings must be for a bundle to run."""

from __future__ import annotations

from tightbeam.deploy.generation.for_bundle import options_for
from tightbeam.deploy.generation.options import UNSUPPORTED, GenerationError
from tightbeam.export.checkpoint.load import CONFIG_FILE, GENERATION_FILE, Checkpoint
from tightbeam.export.errors import ExportError

__all__ = ["check_settings", "take_out_sampling"]


def take_out_sampling(checkpoint: Checkpoint) -> str:
    """Let a checkpoint that samples search, as most chat models' must: a note for the user, empty where it does not."""
    if checkpoint.generation_config.get("do_sample") is not True:
        return ""
    del checkpoint.generation_config["do_sample"]
    checkpoint.model.generation_config.do_sample = False
    return (
        "the checkpoint samples (do_sample), which a bundle cannot; it searches, as model.generate with do_sample=False"
    )


def check_settings(checkpoint: Checkpoint, *, supported: bool) -> None:
    """Raise ExportError, in the runner's words, for settings of a wrong type or size; with ``supported`` also for those
    that the runner does not have, which its caller could replace."""
    settings = checkpoint.generation_config
    if not supported:
        settings = {name: value for name, value in settings.items() if name not in UNSUPPORTED}
    try:
        options_for(settings, {}, checkpoint.sizes, speech=bool(checkpoint.family.source_files))
    except GenerationError as error:
        name = GENERATION_FILE if (checkpoint.path / GENERATION_FILE).exists() else CONFIG_FILE
        raise ExportError(f"{checkpoint.path / name}: {error}") from None
