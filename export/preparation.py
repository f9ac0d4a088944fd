"""The checks of an export that need neither torch nor transformers, all of them before these are imported."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from tightbeam.deploy.bundle.writer import check_target
from tightbeam.export.accuracy.calibration_file import read_calibration
from tightbeam.export.auto.ranking import best_of, rank, refusals_by_sizes
from tightbeam.export.checkpoint.config import check_run_settings, settings_file
from tightbeam.export.checkpoint.files import CheckpointFiles, check_whole, read_files, with_global_tokens
from tightbeam.export.checkpoint.resolve import checkpoint_name
from tightbeam.export.options import Choice, ExportOptions
from tightbeam.export.writing.creation_time import creation_time
from tightbeam.graph_passes import RunSize, same_for_all
from tightbeam.graph_passes.caches.cost import Machine

__all__ = ["Preparation", "check_memory", "prepare", "run_size"]


@dataclass(frozen=True)
class Preparation:
    """An export whose options and files were checked."""

    files: CheckpointFiles
    choice: Choice
    target: Path
    """folder of the bundle"""
    texts: tuple[str, ...] | None
    """calibration texts of the user's own"""


def prepare(
    model: str | os.PathLike[str], output: str | os.PathLike[str] | None, options: ExportOptions
) -> Preparation:
    """Check everything that config.json and the file system tell.

    Parameters
    ----------
    model
        An alias, a hub id, or a folder.
    output
        The bundle's folder; by default ``<model>-<variant>`` in the current folder, with ``-fp16`` or ``-int8`` where
        that is the precision, ``-cache-int8`` where that is the source cache's, and ``-global-<count>`` with tokens of
        global attention.
    options
        The options of the export.

    Raises
    ------
    ExportError
        A checkpoint or an option cannot be exported.
    PassError
        Kinds of cache do not go together.
    BundleError
        The target cannot be written.
    """
    options.check_rates()
    creation_time()  # a wrong SOURCE_DATE_EPOCH is an error now
    texts = read_calibration(options.calibration) if options.calibration is not None else None
    choice = options.choice()
    suffix = "" if options.precision == "fp32" else f"-{options.precision}"
    suffix += "" if options.cache_precision is None else f"-cache-{options.cache_precision}"
    suffix += f"-global-{options.global_tokens}" if options.global_tokens else ""
    target = Path(output or f"{checkpoint_name(model)}-{choice.name}{suffix}")
    check_target(target, force=options.force)
    files = with_global_tokens(read_files(model), options.global_tokens)
    options.check_model(choice, files.sizes)
    run = run_size(files, options)
    check_whole(files)
    check_memory(files, choice, options, run)
    return Preparation(files, choice, target, texts)


def run_size(files: CheckpointFiles, options: ExportOptions) -> RunSize:
    """Sizes of the run that the options describe. Raises ExportError for a length that the model does not have."""
    defaults = files.generation
    if options.max_new_tokens is not None:
        defaults = {**defaults, "max_new_tokens": options.max_new_tokens, "max_length": None}
    check_run_settings(settings_file(files.path), defaults)
    run = options.workload.run_size(files.sizes, defaults, options.itemsize, whole=files.family.has_whole_source)
    return replace(run, int8=options.precision == "int8", quantized_source=options.cache_precision is not None)


def check_memory(files: CheckpointFiles, choice: Choice, options: ExportOptions, run: RunSize) -> None:
    """Raise ExportError where the memory limit is too small by the numbers of the config, a lower bound of the real."""
    weight_bytes = options.weight_itemsize * files.family.weights(files.declared).total
    if choice.preset is not None:
        plan = same_for_all(choice.preset, files.sizes.L, "")
        options.check_memory(weight_bytes, plan, files.sizes, run)
    elif options.workload.memory_limit is not None:
        counts, any_machine = files.family.weights(files.declared).products, Machine(1.0, 1.0, 1.0, 1.0, 1.0)
        impossible = refusals_by_sizes(files.sizes, quantized_source=run.quantized_source)
        best_of(rank(files.sizes, counts, impossible, run, any_machine, weight_bytes, options.workload.memory_limit))
