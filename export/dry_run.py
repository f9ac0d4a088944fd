"""``--dry-run``: caches and predicted times of every variant from config.json alone, without weights or torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from rich.console import RenderableType

from tightbeam.deploy.runtimes.process.memory import BY_LAYER, ProcessMemory, buffer_bytes
from tightbeam.export.auto.ranking import rank, ranking_table, refusals_by_sizes
from tightbeam.export.checkpoint.config import CONFIG_FILE, GENERATION_FILE
from tightbeam.export.checkpoint.files import CheckpointFiles, read_files, with_encoding
from tightbeam.export.checkpoint.gguf_file import checkpoint_of
from tightbeam.export.machine_checks import weight_itemsize
from tightbeam.export.options import ExportOptions
from tightbeam.export.preparation import check_memory_by_config, check_model, run_size
from tightbeam.export.tables import megabytes, memory_table, process_table
from tightbeam.graph_passes import PRESETS, Preset, RunSize, Sizes, plan_bytes, same_for_all

__all__ = ["dry_run"]


def dry_run(model: str | os.PathLike[str], options: ExportOptions, show: Callable[[RenderableType], None]) -> None:
    """Show what an export with these options would make, by the checkpoint's config.

    The export has the same bytes of caches and numbers in products. The bytes of weights leave out biases and norms,
    about 0.1 %. An export may still refuse a variant for its graphs, and its guard may give a layer another cache.

    Parameters
    ----------
    model
        An alias, a hub id, a .gguf file, or a folder that has config.json; generation_config.json is read if it is
        there.
    options
        The options of the export.
    show
        Called with each table and line.

    Raises
    ------
    ExportError
        The model is unknown, or the options do not fit it, the memory limit among them (after the tables).
    PassError
        Kinds of cache do not go together.
    """
    with checkpoint_of(model) as checkpoint:
        files = read_files(checkpoint, (CONFIG_FILE, GENERATION_FILE))
        files = with_encoding(files, global_tokens=options.global_tokens, short_audio=options.short_audio)
        _show(files, options, show)


def _show(files: CheckpointFiles, options: ExportOptions, show: Callable[[RenderableType], None]) -> None:
    """Show what an export of a checkpoint would make. Raises ExportError and PassError."""
    choice = options.choice()
    check_model(options, choice, files.sizes)
    sizes, run, weights = files.sizes, run_size(files, options), files.family.weights(files.declared)
    show(f"{files.name}, {files.family.model_type}: {sizes.L} decoder layers, {sizes.D} wide, {sizes.H} heads")
    machine, origin = options.workload.machine(integers=run.has_integers)
    weight_bytes, limit = int(weight_itemsize(options.precision) * weights.total), options.workload.memory_limit
    impossible = refusals_by_sizes(sizes, run)
    ranked = rank(sizes, weights.products, impossible, run, machine, weight_bytes, limit)
    preset = choice.preset or PRESETS[ranked[0].variant]
    show(memory_table(sizes, run, same_for_all(preset, sizes.L, "")))
    if options.precision != "fp16":  # which is for GPUs
        show(process_table(_processes(preset, sizes, run, weight_bytes)))
    show(ranking_table(ranked, impossible, run, machine, origin, sizes.decoder_only))
    if run.weight_itemsize:
        show(
            f"Weights in {options.precision}: {megabytes(weight_bytes)} at least; scales, biases and norms stay "
            "float32,\nand so do products that the guard finds too inexact."
        )
    show(
        "By config.json alone. Bytes of weights leave out biases and norms, about 0.1 %.\n"
        "Only an export tells whether the traced graphs allow a variant, and whether the\n"
        "guard gives a layer a safer cache."
    )
    check_memory_by_config(files, choice, options, run)


def _processes(preset: Preset, sizes: Sizes, run: RunSize, weight_bytes: int) -> dict[int, ProcessMemory]:
    """Compute the memory of a process for one input, and for the batch."""
    plan = same_for_all(preset, sizes.L, "")
    return {
        B: ProcessMemory(
            mapped_weights=weight_bytes,
            packed_weights=0,
            graphs=2 * sizes.L * BY_LAYER,
            caches=sum(plan_bytes(plan, sizes, replace(run, B=B))),
            buffers=buffer_bytes(
                B,
                run.M,
                run.N,
                width=sizes.source_D,
                vocabulary=sizes.vocabulary,
                score_heads=0,  # a prompt attends in blocks
            ),
        )
        for B in dict.fromkeys((1, run.B))
    }
