"""Generation settings of a checkpoint: those that a bundle can run, and notes on the others."""

from __future__ import annotations

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.fields import UNSUPPORTED
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.export.checkpoint.config import settings_file
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.errors import ExportError

__all__ = ["check_settings", "disable_sampling", "limit_length", "set_max_new_tokens"]


def disable_sampling(checkpoint: Checkpoint) -> str:
    """Turn sampling off if a bundle cannot sample as the checkpoint does. Returns a note for the user, else ""."""
    settings = checkpoint.generation_config
    if settings.get("do_sample") is not True:
        return ""
    try:
        resolve_settings(settings, {}, checkpoint.sizes, speech=checkpoint.family.has_windows).for_prompt(1)
        return ""
    except GenerationError as error:
        reason = str(error)
    try:
        without = {**settings, "do_sample": False}
        resolve_settings(without, {}, checkpoint.sizes, speech=checkpoint.family.has_windows).for_prompt(1)
    except GenerationError:
        return ""  # the same with and without sampling
    del settings["do_sample"]
    checkpoint.model.generation_config.do_sample = False
    return (
        "by default the bundle generates as model.generate with do_sample=False, although the checkpoint samples: "
        f"{reason}"
    )


def set_max_new_tokens(checkpoint: Checkpoint, max_new_tokens: int) -> None:
    """Replace the checkpoint's default length, for the bundle and for `model.generate`."""
    checkpoint.generation_config.pop("max_length", None)
    checkpoint.generation_config["max_new_tokens"] = max_new_tokens
    checkpoint.model.generation_config.max_length = None
    checkpoint.model.generation_config.max_new_tokens = max_new_tokens


def limit_length(checkpoint: Checkpoint) -> str:
    """Lower default lengths that exceed the model's positions. Returns a note for the user, else "".

    A prompt takes positions, too: for a decoder-only model such a `max_new_tokens` becomes a `max_length`.
    """
    settings, positions = checkpoint.generation_config, checkpoint.sizes.max_target
    notes = []
    for name, most in (("max_new_tokens", positions - 1), ("max_length", positions)):
        given = settings.get(name)
        if type(given) is not int or given <= most:
            continue
        asked = f"{name}={given}"
        if name == "max_new_tokens" and checkpoint.sizes.decoder_only:
            settings.pop("max_new_tokens", None)
            checkpoint.model.generation_config.max_new_tokens = None
            name, most = "max_length", positions
        settings[name] = most
        setattr(checkpoint.model.generation_config, name, most)
        notes.append(
            f"{asked} of the checkpoint exceeds the model's {positions} positions, so the bundle has {name}={most}"
        )
    return "; ".join(notes)


def check_settings(checkpoint: Checkpoint, *, supported: bool) -> None:
    """Raise ExportError, with the runner's message, for settings of a wrong type or size.

    With ``supported`` also for settings that the runner lacks; without it, the bundle's user must replace them.
    """
    settings = checkpoint.generation_config
    if not supported:
        settings = {name: value for name, value in settings.items() if name not in UNSUPPORTED}
    try:
        resolve_settings(settings, {}, checkpoint.sizes, speech=checkpoint.family.has_windows).for_prompt(1)
    except GenerationError as error:
        raise ExportError(f"{settings_file(checkpoint.path)}: {error}") from None
