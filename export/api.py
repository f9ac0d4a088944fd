"""``export_model``: the checks that need no torch first, then the steps of ``pipeline``, which imports it."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import RenderableType

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.export.auto.workload import Workload
from tightbeam.export.options import ExportOptions
from tightbeam.export.preparation import prepare
from tightbeam.export.progress import STEPS

__all__ = ["export_model", "export_with"]


def export_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    variant: str | None = None,
    source_cache: str | None = None,
    generated_cache: str | None = None,
    precision: str = "fp32",
    cache_precision: str | None = None,
    max_new_tokens: int | None = None,
    calibration: str | os.PathLike[str] | None = None,
    weight_threshold: float = 0.0,
    global_tokens: int = 0,
    workload: Workload | None = None,
    max_differing: float | None = None,
    check: bool = True,
    force: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
    on_table: Callable[[RenderableType], None] = lambda table: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Bundle:
    """Export a checkpoint as a bundle.

    After an error there is no new bundle, and an existing one is unchanged.

    Parameters
    ----------
    model
        A bare alias (``bart-large-cnn``, ``demo``), a hub id, or a folder.
    output
        The bundle's folder; by default ``<model>-<variant>`` in the current folder, with ``-fp16`` or ``-int8`` where
        that is the precision, and ``-global-<count>`` with ``global_tokens``.
    variant
        A name of ``graph_passes.PRESETS``; `dedup` by default. "auto" takes the variant that is predicted to be fastest
        for ``workload``.
    source_cache, generated_cache
        Kinds of cache (``graph_passes.SOURCE``, ``GENERATED``) in place of the variant's. A layer whose rewritten
        attention is not exact enough gets a safer kind (``accuracy/guard.py``).
    precision
        "fp32"; or "fp16" for products, caches and most weights, or "int8" for products and embeddings on the CPU alone;
        neither is exact: the error is measured.
    cache_precision
        "int8" for a source cache of integers of 8 bits, each row with a scale, on the CPU alone; None for that of
        ``precision``. It is not exact: the error is measured.
    max_new_tokens
        The bundle's default in place of the checkpoint's, in tokens.
    calibration
        A file of texts, one a line, on which the error of rewritten attention and of int8's products is measured, and
        an inexact bundle's sequences are counted, in place of the built-in ones.
    weight_threshold
        Attention probability below which source positions are skipped; above 0 this is not exact, and the comparison
        with torch counts differences in place of failing.
    global_tokens
        For LED: the first so many tokens of each source have global attention, as with a ``global_attention_mask`` of
        ``model.generate``. The published summarizers take 1; 0 is ``generate`` without the mask.
    workload
        The runs that the bundle is for: the basis of "auto". Weights and caches that exceed its memory limit are an
        error.
    max_differing
        Largest share of sequences that may differ from torch's, in place of counting them; for inexact bundles alone.
    check
        Generate with torch and with the bundle, and fail where a token differs.
    force
        Replace an existing bundle.
    on_step
        Called with each of ``STEPS`` as it begins.
    on_table
        Called with each table: the predictions for "auto", and the errors of products where ``max_differing`` refuses.
    on_note
        Called with each message for the user, one line.

    Returns
    -------
    Bundle
        The bundle that was written, with the result of the comparison in its manifest.

    Raises
    ------
    ExportError
        A checkpoint or an option cannot be exported, or a token differs; of an inexact bundle, too many sequences.
    PassError
        A graph cannot be rewritten.
    BundleError
        The output cannot be written.
    """
    options = ExportOptions(
        variant=variant,
        source_cache=source_cache,
        generated_cache=generated_cache,
        precision=precision,
        cache_precision=cache_precision,
        max_new_tokens=max_new_tokens,
        calibration=calibration,
        weight_threshold=weight_threshold,
        global_tokens=global_tokens,
        workload=workload or Workload(),
        max_differing=max_differing,
        check=check,
        force=force,
    )
    return export_with(model, output, options, on_step=on_step, on_table=on_table, on_note=on_note)


def export_with(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None,
    options: ExportOptions,
    *,
    on_step: Callable[[str], None],
    on_table: Callable[[RenderableType], None],
    on_note: Callable[[str], None],
) -> Bundle:
    """Export a checkpoint: `export_model`, with its arguments, result and errors, but for options already checked."""
    preparation = prepare(model, output, options)
    on_step(STEPS[0])
    from tightbeam.export.pipeline import run_export

    return run_export(preparation, options, on_step, on_table, on_note)
