"""The kinds of cache that the options of an export request: a variant's, or others in their place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import GENERATED, PRESETS, SOURCE, Preset

__all__ = ["AUTO", "DEFAULT", "Choice", "choose"]

AUTO = "auto"
DEFAULT = "dedup"
"""The variant if none is named: exact in every model, and the least arithmetic of those that share the source."""


@dataclass(frozen=True)
class Choice:
    """The kinds of cache that the options request."""

    name: str
    """the variant that has both kinds, else both kinds, joined by a plus sign"""
    preset: Preset | None
    """None for ``auto``, until the variant is chosen"""
    reason: str
    """the options that requested it"""


def choose(variant: str | None, source_cache: str | None = None, generated_cache: str | None = None) -> Choice:
    """Choose the kinds of cache of a variant, some of them replaced.

    Parameters
    ----------
    variant
        A name of ``graph_passes.PRESETS``, or "auto"; ``DEFAULT`` if None.
    source_cache, generated_cache
        Kinds of ``graph_passes.SOURCE`` and ``GENERATED`` in place of the variant's.

    Returns
    -------
    Choice
        Both kinds, and the variant that has them.

    Raises
    ------
    ExportError
        There is no such variant or kind, or a kind is given for "auto".
    """
    variant = variant or DEFAULT
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
