"""The checks of an export that need neither torch nor transformers, all of them before these are imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.writer import check_target
from tightbeam.export.accuracy.calibration_file import read_calibration
from tightbeam.export.auto.ranking import best_of, rank, refusals_by_sizes
from tightbeam.export.checkpoint.chat_template import read_chat_template
from tightbeam.export.checkpoint.config import check_run_settings, settings_file
from tightbeam.export.checkpoint.files import (
    CheckpointFiles,
    check_whole,
    read_files,
    with_encoding,
)
from tightbeam.export.checkpoint.recordings import find_recordings
from tightbeam.export.checkpoint.resolve import checkpoint_name
from tightbeam.export.checkpoint.tokenizer_files import tokenizer_files
from tightbeam.export.choice import DEFAULT, Choice
from tightbeam.export.errors import ExportError
from tightbeam.export.families.base import Family
from tightbeam.export.machine_checks import check_machine, weight_itemsize
from tightbeam.export.options import ExportOptions
from tightbeam.export.writing.creation_time import creation_time
from tightbeam.graph_passes import LayerPlan, RunSize, Sizes, needs_guard, passes_of, plan_bytes, same_for_all, why_not
from tightbeam.graph_passes.caches.cost import Machine
from tightbeam.graph_passes.precision.lower_precision import INTEGERS, itemsize

__all__ = [
    "Preparation",
    "check_memory",
    "check_memory_by_config",
    "check_model",
    "prepare",
    "run_of",
    "run_size",
]


@dataclass(frozen=True)
class Preparation:
    """An export whose options and files were checked."""

    files: CheckpointFiles
    choice: Choice
    target: Path
    """folder of the bundle"""
    calibration: tuple[str, ...] | None
    """calibration texts of the user's own, or names of recordings for a speech model"""
    chat_template: str | None
    """chat template of the user's own"""


def prepare(
    model: str | os.PathLike[str], output: str | os.PathLike[str] | None, options: ExportOptions
) -> Preparation:
    """Check everything that config.json and the file system show.

    Parameters
    ----------
    model
        An alias, a hub id, or a folder.
    output
        The bundle's folder; by default named as ``export_model`` says, in the current folder.
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
    _check_rates(options)
    creation_time()  # a wrong SOURCE_DATE_EPOCH is an error now
    choice = options.choice()
    suffix = "" if options.precision == "fp32" else f"-{options.precision}"
    suffix += "" if options.cache_precision is None else f"-cache-{options.cache_precision}"
    suffix += "" if options.generated_cache_precision is None else f"-generated-{options.generated_cache_precision}"
    suffix += f"-global-{options.global_tokens}" if options.global_tokens else ""
    suffix += "-short-audio" if options.short_audio else ""
    template = read_chat_template(options.chat_template) if options.chat_template is not None else None
    target = Path(output or f"{checkpoint_name(model)}-{choice.name}{suffix}")
    check_target(target, force=options.force)
    files = with_encoding(read_files(model), global_tokens=options.global_tokens, short_audio=options.short_audio)
    check_model(options, choice, files.sizes)
    calibration = _calibration(files, options.calibration) if options.calibration is not None else None
    run = run_size(files, options)
    check_whole(files)
    check_memory_by_config(files, choice, options, run)
    check_machine(files, options, target, measures=_measures(options, choice, files.sizes.L))
    return Preparation(files, choice, target, calibration, template)


def _calibration(files: CheckpointFiles, path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Calibration texts, or names of recordings for a speech model.

    Raises ExportError if there are none, or the checkpoint takes none.
    """
    if files.family.is_speech:
        return find_recordings(path)
    if files.family.reads_images:
        raise ExportError("this model reads images, and is measured on drawn pages; leave --calibration out")
    if not tokenizer_files(files.path):
        raise ExportError("the checkpoint has no tokenizer to read calibration texts with; leave --calibration out")
    return read_calibration(path)


def _measures(options: ExportOptions, choice: Choice, layers: int) -> bool:
    """Return whether an export measures errors on samples, the comparison with torch aside."""
    guarded = choice.preset is None or needs_guard(same_for_all(choice.preset, layers, ""))
    return guarded or options.precision in INTEGERS or bool(options.int8_caches)


def _check_rates(options: ExportOptions) -> None:
    """Raise ExportError for rates of a machine in an export that predicts no times."""
    workload = options.workload
    rates = workload.bandwidth_gb_s, workload.gflop_s, workload.gpu
    if rates != (None, None, None) and options.choice().preset is not None:
        raise ExportError(
            "bandwidth, matrix rate and GPU are for --variant auto and --dry-run; leave them out, or pass one of these"
        )


def check_model(options: ExportOptions, choice: Choice, sizes: Sizes) -> None:
    """Refuse options that a model of these sizes cannot have, before it generates and is traced, which takes long.

    Raises
    ------
    PassError
        The kinds of cache do not go together.
    ExportError
        The model cannot have a kind of cache, calibration texts are given for an exact choice, or more new tokens than
        the model has positions.
    """
    if choice.preset is not None:
        plan = same_for_all(choice.preset, sizes.L, choice.reason)
        passes_of(plan, one_softmax=sizes.one_softmax)
        if reason := why_not(choice.preset, sizes):
            raise ExportError(f"variant {choice.name} {reason}; use --variant {DEFAULT}")
        if options.calibration is not None and options.is_exact and not needs_guard(plan):
            raise ExportError(
                f"--calibration is for what is measured, and variant {choice.name} is exact; leave it out"
            )
        if options.weight_threshold and choice.preset.source == "kv-per-beam":
            raise ExportError(
                "--weight-threshold needs a source cache that is read by an operator of plugins/, and kv-per-beam is "
                f"not; use --variant {DEFAULT}, or leave it out"
            )
    if options.max_new_tokens is not None and options.max_new_tokens >= sizes.max_target:
        raise ExportError(
            f"max_new_tokens={options.max_new_tokens} and the start token exceed the model's {sizes.max_target} "
            "positions; pass fewer"
        )


def run_size(files: CheckpointFiles, options: ExportOptions) -> RunSize:
    """Return the sizes of the run that the options describe, by a checkpoint's files.

    Raises ExportError for a length that the model does not have.
    """
    defaults = files.generation
    if options.max_new_tokens is not None:
        defaults = {**defaults, "max_new_tokens": options.max_new_tokens, "max_length": None}
    check_run_settings(settings_file(files.path), defaults)
    return run_of(options, files.family, files.sizes, defaults)


def run_of(options: ExportOptions, family: Family, sizes: Sizes, defaults: Mapping[str, Any]) -> RunSize:
    """Return the sizes of the run that the options describe, with a model's generation defaults."""
    whole = family.has_whole_source
    run = options.workload.run_size(sizes, defaults, itemsize(options.precision), whole=whole)
    integers = weight_itemsize(options.precision) if options.precision in INTEGERS else 0.0
    return replace(
        run,
        weight_itemsize=integers,
        quantized_source="source" in options.int8_caches,
        quantized_generated="generated" in options.int8_caches,
    )


def check_memory_by_config(files: CheckpointFiles, choice: Choice, options: ExportOptions, run: RunSize) -> None:
    """Raise ExportError if the memory limit is below what the config's sizes need, a lower bound."""
    limit, weights = options.workload.memory_limit, files.family.weights(files.declared)
    weight_bytes = int(weight_itemsize(options.precision) * weights.total)
    if choice.preset is not None:
        check_memory(limit, weight_bytes, same_for_all(choice.preset, files.sizes.L, ""), files.sizes, run)
    elif limit is not None:
        any_machine = Machine(1.0, 1.0, 1.0, 1.0, 1.0)
        impossible = refusals_by_sizes(files.sizes, run)
        best_of(rank(files.sizes, weights.products, impossible, run, any_machine, weight_bytes, limit))


def check_memory(limit: int | None, weight_bytes: int, plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize) -> None:
    """Raise ExportError if weights and the caches of a plan exceed the memory limit, in bytes."""
    needed = weight_bytes + sum(plan_bytes(plan, sizes, run))
    if limit is None or needed <= limit:
        return
    fix = "pass --variant auto, which takes a variant that fits if there is one, or a smaller --batch-size"
    if weight_bytes >= limit:
        fix = f"the weights alone have {weight_bytes:,}: raise --memory-limit, or lower --precision"
    raise ExportError(f"weights and caches need {needed:,} bytes, over the limit of {limit:,}; {fix}")
