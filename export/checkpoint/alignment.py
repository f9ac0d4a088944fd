"""The alignment heads of a Whisper checkpoint: the cross-attentions from which token times are made."""

from __future__ import annotations

import reprlib
from typing import Any

from tightbeam.deploy.bundle.manifest import AlignmentEntry
from tightbeam.export.checkpoint.config import settings_file
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.errors import ExportError

__all__ = ["alignment_of"]

HEADS, WIDTH = "alignment_heads", "median_filter_width"


def alignment_of(checkpoint: Checkpoint) -> AlignmentEntry | None:
    """Read the alignment heads of a checkpoint, and the width of the filter over their attention.

    Parameters
    ----------
    checkpoint
        One of any family.

    Returns
    -------
    AlignmentEntry or None
        None for another model than Whisper, and for a Whisper without ``alignment_heads``.

    Raises
    ------
    ExportError
        The heads are not this model's, or the width is not an odd number.
    """
    given = checkpoint.generation_config.get(HEADS)
    if not checkpoint.family.is_speech or given is None:
        return None
    sizes, path = checkpoint.sizes, settings_file(checkpoint.path)
    heads = given if isinstance(given, list) else []
    if not heads or not all(_is_head(head, sizes.L, sizes.H) for head in heads):
        raise ExportError(
            f"{path}: {HEADS}={reprlib.repr(given)} is not a list of pairs [layer, head], with layers from 0 to "
            f"{sizes.L - 1} and heads from 0 to {sizes.H - 1}; correct or remove it"
        )
    width = checkpoint.config.median_filter_width
    if not _is_integer(width) or width < 1 or width % 2 == 0:
        raise ExportError(
            f"{checkpoint.path / 'config.json'}: {WIDTH}={width!r} is not an odd number; restore the file, which has 7"
        )
    return AlignmentEntry(heads=tuple((layer, head) for layer, head in heads), median_filter_width=width)


def _is_head(value: Any, layers: int, heads: int) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_integer, value)):
        return False
    layer, head = map(int, value)
    return 0 <= layer < layers and 0 <= head < heads


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
