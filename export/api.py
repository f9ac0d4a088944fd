"""``export_model``: the checks that need no torch first, then the steps of ``pipeline``, which imports it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Unpack

from rich.console import RenderableType

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.export.auto.workload import Workload
from tightbeam.export.checkpoint.gguf_file import checkpoint_of
from tightbeam.export.counts import OnCount, watched
from tightbeam.export.option import with_keywords
from tightbeam.export.options import ExportKeywords, ExportOptions
from tightbeam.export.preparation import prepare
from tightbeam.export.progress import STEPS

__all__ = ["export_model", "export_with"]


@with_keywords(ExportOptions)
def export_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    workload: Workload | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    on_table: Callable[[RenderableType], None] = lambda table: None,
    on_note: Callable[[str], None] = lambda note: None,
    on_count: OnCount = lambda what, done, total: None,
    **options: Unpack[ExportKeywords],
) -> Bundle:
    """Export a checkpoint as a bundle.

    After an error there is no new bundle, and an existing one is unchanged.

    Parameters
    ----------
    model
        A bare alias (``bart-large-cnn``, ``demo``), a hub id, a folder, or a .gguf file.
    output
        The bundle's folder; by default ``<model>-<variant>`` in the current folder, followed by ``-fp16`` or ``-int8``
        for a precision, ``-cache-int8`` for a source cache in int8, and ``-global-<count>`` for tokens of global
        attention.
    **options
        The options of ``export-model`` as keywords: variant, precision and all others.
    workload
        The runs that the bundle is for: the basis of variant "auto". Weights and caches that exceed its memory limit
        are an error.
    on_step
        Called with each of ``STEPS`` as it begins.
    on_table
        Called with each table: the predictions for "auto", and the errors of products if ``max_differing`` refuses.
    on_note
        Called with each message for the user, one line.
    on_count
        Called within a step as its parts are done, with what is counted ("layers measured"), how many are done, and of
        how many; with 0 and 0 for a part of a step that has nothing to count.

    Returns
    -------
    Bundle
        The bundle that was written, with the result of the comparison in its manifest.

    Raises
    ------
    ExportError
        A checkpoint or an option cannot be exported; a token differs from torch's, or for an inexact bundle, too many
        sequences differ.
    PassError
        A graph cannot be rewritten.
    BundleError
        The output cannot be written.
    """
    checked = ExportOptions(workload=workload or Workload(), **options)
    return export_with(model, output, checked, on_step=on_step, on_table=on_table, on_note=on_note, on_count=on_count)


def export_with(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None,
    options: ExportOptions,
    *,
    on_step: Callable[[str], None],
    on_table: Callable[[RenderableType], None],
    on_note: Callable[[str], None],
    on_count: OnCount,
) -> Bundle:
    """Export a checkpoint: `export_model`, with its arguments, result and errors, but for options already checked."""
    with checkpoint_of(model) as checkpoint:
        preparation = prepare(checkpoint, output, options)
        on_step(STEPS[0])
        from tightbeam.export.pipeline import run_export

        with watched(on_count):
            return run_export(preparation, options, on_step, on_table, on_note)
