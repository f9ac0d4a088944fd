"""Checkpoint -> bundle: load, trace once, rewrite to a variant, write, compare with torch."""

from __future__ import annotations

import gc
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import RenderableType

from tightbeam.deploy.bundle.engine_files import engine_names
from tightbeam.deploy.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    WEIGHTS,
    GuardEntry,
    LayerChoice,
    Manifest,
    ModelSizes,
    PassEntry,
)
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import check_target, file_entry, write_bundle
from tightbeam.export.accuracy.calibration import calibrate, read_calibration
from tightbeam.export.accuracy.guard import Measured, guard, needs_guard
from tightbeam.export.accuracy.parity import Reference, compare, make_reference
from tightbeam.export.accuracy.precision_error import measure_forms, write_forms
from tightbeam.export.auto.ranking import best_of, rank, ranking_table
from tightbeam.export.auto.workload import Workload
from tightbeam.export.checkpoint.audio import check_speech, write_speech
from tightbeam.export.checkpoint.generation import check_settings, take_out_sampling
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.checkpoint.resolve import checkpoint_name
from tightbeam.export.checkpoint.tokenizer import write_tokenizer
from tightbeam.export.errors import ExportError
from tightbeam.export.options import SMALLEST, Choice, choose, default_variant
from tightbeam.export.tables import BEAMS, longest_output
from tightbeam.export.tracing.torch_export import trace
from tightbeam.export.writing.graphs import graph_entries, state_entries, write_graphs
from tightbeam.graph_passes import (
    PRESETS,
    LayerPlan,
    ModelGraphs,
    PassResult,
    RunSize,
    Sizes,
    passes_of,
    plan_bytes,
    require_sizes,
    rewrite,
    same_for_all,
    skip_small_weights,
)
from tightbeam.graph_passes.precision.lower_precision import itemsize, lower_precision

__all__ = ["PRECISIONS", "STEPS", "export_model"]

PRECISIONS = ("fp32", "fp16")
STEPS = (
    "loading",
    "generating with torch",
    "tracing",
    "rewriting",
    "measuring errors",
    "writing",
    "comparing with torch",
)


def export_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    variant: str | None = None,
    source_cache: str | None = None,
    generated_cache: str | None = None,
    precision: str = "fp32",
    max_new_tokens: int | None = None,
    calibration: str | os.PathLike[str] | None = None,
    weight_threshold: float = 0.0,
    workload: Workload | None = None,
    check: bool = True,
    force: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
    on_ranking: Callable[[RenderableType], None] = lambda table: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Bundle:
    """Export a checkpoint as a bundle.

    ``model``: a bare alias (``bart-large-cnn``, ``demo``), a hub id, or a folder. ``output``: the bundle folder, by
    default ``<model>-<variant>`` in the current folder, with ``-fp16`` in half precision.
    ``variant``: a name of ``graph_passes.PRESETS``; without one `el`, or `dedup` where the model cannot have that
    (``default_variant``).
    ``source_cache``, ``generated_cache``: kinds of cache (``graph_passes.SOURCE``, ``GENERATED``) in place of the
    variant's. A layer whose rewritten attention is not exact enough keeps something safer (``guard.py``);
    ``calibration``: a file of texts, one a line, on which that is measured, in place of the built-in ones.
    ``weight_threshold``: source positions that have less weight are left out (``skip_small_weights``); not exact, so
    that the comparison counts what differs in place of failing.
    ``precision``: "fp32", or "fp16" for products, caches and most weights: not exact either; its error is measured.
    ``max_new_tokens``: becomes the bundle's default in place of the checkpoint's. ``check``: generate with torch and
    with the bundle, and fail where a token differs. ``force``: replace an existing bundle. ``on_step`` is called with
    each of ``STEPS`` as it begins.
    ``workload``: what the bundle is for; ``variant="auto"`` takes what is predicted to be fastest for it, and tells
    ``on_ranking`` the table; caches that do not fit its memory limit are an error. ``on_note``: what a user must know.

    Raises ExportError for a checkpoint or an option, PassError for a graph that cannot be rewritten, BundleError for
    an output that cannot be written. After an error there is no bundle, and an existing one is as it was.
    """
    workload = workload or Workload()
    choice = choose(variant or SMALLEST, source_cache, generated_cache)
    _check_used(choice, workload)
    _check_options(precision, max_new_tokens, weight_threshold)
    texts = read_calibration(calibration) if calibration is not None else None
    target = _target(model, output, choice, precision, force)

    on_step(STEPS[0])
    checkpoint = load_checkpoint(model)
    if variant is None and (possible := default_variant(checkpoint.sizes)) != SMALLEST:
        choice = choose(possible, source_cache, generated_cache)
        target = _target(model, output, choice, precision, force)
    _refuse_early(choice, checkpoint.sizes)
    if texts is not None and choice.preset is not None and not needs_guard(same_for_all(choice.preset, 1, "")):
        raise ExportError(f"calibration texts are for what is measured; {choice.name} is exact, leave them out")
    check_speech(checkpoint)
    if max_new_tokens is not None:
        _set_max_new_tokens(checkpoint, max_new_tokens)
    if note := take_out_sampling(checkpoint):
        on_note(note)
    check_settings(checkpoint, supported=check)
    reference = None
    if check:
        on_step(STEPS[1])
        reference = make_reference(checkpoint)
    on_step(STEPS[2])
    canonical = trace(checkpoint)
    if choice.preset is None and precision != "fp32" and workload.gflop_s is None:
        on_note(f"the machine's matrix rate is float32's; pass --gflop-s, the serving machine's in {precision}")
    choice = settle(choice, checkpoint, canonical, workload, on_ranking, itemsize(precision))
    assert choice.preset is not None
    plan = same_for_all(choice.preset, canonical.sizes.L, choice.reason)
    on_step(STEPS[3])
    graphs, results = rewrite(canonical, plan)  # before the guard: what the algebra refuses, it cannot measure
    measured: tuple[Measured, ...] = ()
    if needs_guard(plan):
        on_step(STEPS[4])
        wanted = plan
        plan, measured = guard(canonical, plan, calibrate(checkpoint, texts, reference), precision)
        if plan != wanted:
            graphs, results = rewrite(canonical, plan)
    if weight_threshold:
        results.append(skip_small_weights(graphs, weight_threshold))
    _fit(checkpoint, plan, workload, itemsize(precision))
    exact = graphs
    if precision != "fp32":
        graphs = exact.copy()
        results.append(lower_precision(graphs, precision))
    if gone := engine_names(target):
        again = f"build them again: build-engine {target}" if precision == "fp32" else "engines need an fp32 bundle"
        on_note(f"the old bundle's engines go with it ({', '.join(gone)}); {again}")
    on_step(STEPS[5])
    work = [(checkpoint, graphs, results, plan, measured)]
    compared = [(exact, graphs)] if check and precision != "fp32" else []
    del checkpoint, canonical, graphs, exact, results  # `fill` frees the model before the bundle is loaded beside it

    def fill(folder: Path) -> Manifest:
        manifest = write_files(
            folder, *work.pop(), variant=choice.name, precision=precision, weight_threshold=weight_threshold
        )
        error = None
        if compared:
            with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
                write_forms(Path(scratch), folder, manifest, *compared.pop())
                gc.collect()
                error = measure_forms(Path(scratch), manifest)
        gc.collect()
        if reference is None:
            return manifest
        on_step(STEPS[6])
        return _checked(folder, manifest.model_copy(update={"precision_error": error}), reference)

    return write_bundle(target, fill, force=force)


def _target(
    model: str | os.PathLike[str], output: str | os.PathLike[str] | None, choice: Choice, precision: str, force: bool
) -> Path:
    """The bundle's folder. Raises BundleError where something else stands there."""
    of_precision = "" if precision == "fp32" else f"-{precision}"
    target = Path(output or f"{checkpoint_name(model)}-{choice.name}{of_precision}")
    check_target(target, force=force)
    return target


def _check_options(precision: str, max_new_tokens: int | None, weight_threshold: float) -> None:
    if precision == "bf16":
        raise ExportError(
            "no bundle is in bf16: numpy has no such type, and ONNX Runtime's CPU provider few kernels of it, so that "
            "nothing could compare it; take --precision fp16, or of an fp32 bundle build-engine --precision bf16"
        )
    if precision not in PRECISIONS:
        raise ExportError(f"precision {precision!r} is not supported; expected {', '.join(PRECISIONS)}")
    if max_new_tokens is not None and max_new_tokens < 1:
        raise ExportError(f"max_new_tokens={max_new_tokens} leaves nothing to generate; expected 1 or more")
    if not 0 <= weight_threshold < 1:
        raise ExportError(f"weight_threshold={weight_threshold:g} is no share of 1; expected 0 (exact), or e.g. 0.001")


def _check_used(choice: Choice, workload: Workload) -> None:
    """Raise ExportError for what a workload says that nothing will look at."""
    if choice.preset is None:
        return
    if workload.bandwidth_gb_s is not None or workload.gflop_s is not None:
        raise ExportError("bandwidth and matrix rate are for --variant auto; leave them out, or let it choose")
    if workload.memory_limit is None and workload != Workload():
        raise ExportError(
            "batch size, beams and lengths of a job are for --variant auto and --memory-limit; leave them out "
            "(--max-new-tokens is what a bundle itself has)"
        )


def _refuse_early(choice: Choice, sizes: Sizes) -> None:
    """Raise PassError for a choice that can be refused before the model generates and is traced, which takes long."""
    if choice.preset is not None:
        passes_of(same_for_all(choice.preset, sizes.L, choice.reason), decoder_only=sizes.decoder_only)
        require_sizes(choice.preset, sizes)


def settle(
    choice: Choice,
    checkpoint: Checkpoint,
    canonical: ModelGraphs,
    workload: Workload,
    on_ranking: Callable[[RenderableType], None],
    itemsize: int = 4,
) -> Choice:
    """The choice, made now where it is ``auto``; ``itemsize``: bytes a number.

    Raises ExportError where nothing fits the memory limit.
    """
    if choice.preset is not None:
        return choice
    run_size, machine = workload.run_size(checkpoint, itemsize), workload.machine()
    ranked, impossible = rank(canonical, run_size, machine, _weight_bytes(checkpoint, itemsize), workload.memory_limit)
    on_ranking(ranking_table(ranked, impossible, run_size, machine))
    best = best_of(ranked)
    return Choice(best.variant, PRESETS[best.variant], f"auto: {best.variant} is predicted to be fastest")


def _fit(checkpoint: Checkpoint, plan: Sequence[LayerPlan], workload: Workload, itemsize: int) -> None:
    """Raise ExportError where weights and caches are over the memory limit."""
    if workload.memory_limit is None:
        return
    run_size = workload.run_size(checkpoint, itemsize)
    needed = _weight_bytes(checkpoint, itemsize) + sum(plan_bytes(plan, checkpoint.sizes, run_size))
    if needed > workload.memory_limit:
        raise ExportError(
            f"weights and caches need {needed:,} bytes, over the limit of {workload.memory_limit:,}; "
            "--variant auto takes what fits, if anything does, and a smaller --batch-size needs less"
        )


def _weight_bytes(checkpoint: Checkpoint, itemsize: int) -> int:
    numbers = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    return int(itemsize * numbers)


def _set_max_new_tokens(checkpoint: Checkpoint, max_new_tokens: int) -> None:
    limit = checkpoint.sizes.max_target
    if max_new_tokens >= limit:
        raise ExportError(f"max_new_tokens={max_new_tokens} and the start token exceed the model's {limit} positions")
    checkpoint.generation_config.pop("max_length", None)
    checkpoint.generation_config["max_new_tokens"] = max_new_tokens
    checkpoint.model.generation_config.max_length = None
    checkpoint.model.generation_config.max_new_tokens = max_new_tokens


def write_files(
    folder: Path,
    checkpoint: Checkpoint,
    graphs: ModelGraphs,
    results: list[PassResult],
    plan: Sequence[LayerPlan],
    measured: Sequence[Measured] = (),
    *,
    variant: str,
    precision: str = "fp32",
    weight_threshold: float = 0.0,
) -> Manifest:
    """Write a variant's files into ``folder``, all but ``bundle.json``, and describe them. ``graphs`` are in
    ``precision``."""
    longest = longest_output(checkpoint.generation_config, graphs.sizes.max_target)
    run_size = RunSize(B=1, M=BEAMS, N=graphs.sizes.max_source, T=longest, itemsize=itemsize(precision))
    write_graphs(graphs, folder)
    entries = graph_entries(graphs, folder)
    return Manifest(
        format_version=FORMAT_VERSION,
        made_by=f"tightbeam {version('tightbeam')}",
        model=checkpoint.name,
        family=checkpoint.family.model_type,
        variant=variant,
        precision=precision,  # type: ignore[arg-type]  # one of PRECISIONS
        sizes=ModelSizes(**vars(graphs.sizes)),
        layers=tuple(
            LayerChoice(layer=layer, source=choice.source, generated=choice.generated, reason=choice.reason)
            for layer, choice in enumerate(plan)
        ),
        guard=tuple(guard_entry(found) for found in measured),
        weight_threshold=weight_threshold,
        passes=tuple(
            PassEntry(
                name=result.name, matched=result.matched, reason=result.reason, bytes_saved=result.bytes_saved(run_size)
            )
            for result in results
        ),
        encoder=entries["encoder"],
        decoder=entries["decoder"],
        cache_states=state_entries(graphs),
        weights=file_entry(folder, WEIGHTS),
        tokenizer=write_tokenizer(checkpoint.tokenizer, folder),
        speech=write_speech(checkpoint, folder),
        generation=checkpoint.generation_config,
        parity=None,
    )


def guard_entry(found: Measured) -> GuardEntry:
    """A measurement as the manifest has it, which knows no infinity."""
    values = {name: None if value == math.inf else value for name, value in vars(found).items()}
    return GuardEntry.model_validate(values)


def _checked(folder: Path, manifest: Manifest, reference: Reference) -> Manifest:
    """The manifest with the report of the comparison; the draft lets the runner load the folder before that."""
    draft = folder / MANIFEST
    draft.write_text(manifest.model_dump_json(), encoding="utf-8")
    return manifest.model_copy(update={"parity": compare(folder, manifest, reference)})
