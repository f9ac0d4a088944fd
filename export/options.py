"""What an export is asked to keep: a variant by name, or with a kind of cache of the user's own in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import GENERATED, PRESETS, SOURCE, Preset, Sizes, presets_of

__all__ = ["AUTO", "SMALLEST", "Choice", "choose", "default_variant"]

AUTO = "auto"
SMALLEST, ANYWHERE = "el", "dedup"


@dataclass(frozen=True)
class Choice:
    """``name``: of the preset that has both kinds, else both kinds. ``preset``: None until it is chosen, for ``auto``.
    ``reason``: who wanted it so."""

    name: str
    preset: Preset | None
    reason: str


def default_variant(sizes: Sizes) -> str:
    """What is made where nobody names a variant: `el`, or `dedup` for a model whose keys nothing can stand in for."""
    return SMALLEST if SMALLEST in presets_of(sizes) else ANYWHERE


def choose(variant: str, source_cache: str | None = None, generated_cache: str | None = None) -> Choice:
    """The kinds of cache of a variant, those that are given in place of its own. Raises ExportError for a name that is
    no variant or no kind."""
    if variant == AUTO:
        if source_cache is not None or generated_cache is not None:
            raise ExportError("--variant auto chooses both caches; leave --source-cache and --generated-cache out")
        return Choice(AUTO, None, "")
    if variant not in PRESETS:
        raise ExportError(f"variant {variant!r} is unknown; expected one of {', '.join(PRESETS)}, {AUTO}")
    preset, reasons = PRESETS[variant], [f"preset {variant}"]
    for option, kinds, kind in (
        ("source-cache", SOURCE, source_cache),
        ("generated-cache", GENERATED, generated_cache),
    ):
        if kind is None:
            continue
        if kind not in kinds:
            raise ExportError(f"{option} {kind!r} is unknown; expected one of {', '.join(kinds)}")
        preset = replace(preset, **{option.partition("-")[0]: kind})
        reasons.append(f"--{option} {kind}")
    same = [name for name, other in PRESETS.items() if other == preset]
    return Choice((same or [f"{preset.source}+{preset.generated}"])[0], preset, ", ".join(reasons))
