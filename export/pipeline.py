"""The steps of an export: load, generate with torch, trace, rewrite, measure, write, compare with torch."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import RenderableType

from tightbeam.deploy.bundle.engine_files import engine_names
from tightbeam.deploy.bundle.manifest import MANIFEST, GuardEntry, Manifest, PrecisionErrorEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import check_target, write_bundle
from tightbeam.deploy.errors import is_panic
from tightbeam.export.accuracy.calibration import calibrate, read_calibration
from tightbeam.export.accuracy.guard import guard, needs_guard
from tightbeam.export.accuracy.parity import compare
from tightbeam.export.accuracy.precision_error import measure_rounding_pair, write_rounding_pair
from tightbeam.export.accuracy.reference import Reference, make_reference
from tightbeam.export.auto.ranking import best_of, rank, ranking_table
from tightbeam.export.auto.workload import Workload
from tightbeam.export.checkpoint.audio import check_speech
from tightbeam.export.checkpoint.generation import check_settings, disable_sampling, set_max_new_tokens
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.checkpoint.resolve import checkpoint_name
from tightbeam.export.errors import ExportError, first_line
from tightbeam.export.options import Choice, ExportOptions, weight_bytes
from tightbeam.export.writing.bundle_files import write_files
from tightbeam.graph_passes import (
    PRESETS,
    LayerPlan,
    ModelGraphs,
    PassResult,
    rewrite,
    same_for_all,
    skip_small_weights,
    to_precision,
)

__all__ = ["STEPS", "export_model", "trace"]

STEPS = (
    "loading",
    "generating with torch",
    "tracing",
    "rewriting",
    "measuring errors",
    "writing",
    "comparing with torch",
)
LOADING, GENERATING, TRACING, REWRITING, MEASURING, WRITING, COMPARING = STEPS


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

    After an error there is no new bundle, and an existing one is unchanged.

    Parameters
    ----------
    model
        A bare alias (``bart-large-cnn``, ``demo``), a hub id, or a folder.
    output
        The bundle's folder; by default ``<model>-<variant>`` in the current folder, with ``-fp16`` in half precision.
    variant
        A name of ``graph_passes.PRESETS``; by default `el`, or `dedup` where the model cannot have that. "auto" takes
        the variant that is predicted to be fastest for ``workload``.
    source_cache, generated_cache
        Kinds of cache (``graph_passes.SOURCE``, ``GENERATED``) in place of the variant's. A layer whose rewritten
        attention is not exact enough gets a safer kind (``accuracy/guard.py``).
    precision
        "fp32"; or "fp16" for products, caches and most weights, which is not exact: its error is measured.
    max_new_tokens
        The bundle's default in place of the checkpoint's, in tokens.
    calibration
        A file of texts, one a line, on which the error of rewritten attention is measured, in place of the built-in
        ones.
    weight_threshold
        Attention probability below which source positions are skipped; above 0 this is not exact, and the comparison
        with torch counts differences in place of failing.
    workload
        The runs that the bundle is for: the basis of "auto". Weights and caches that exceed its memory limit are an
        error.
    check
        Generate with torch and with the bundle, and fail where a token differs.
    force
        Replace an existing bundle.
    on_step
        Called with each of ``STEPS`` as it begins.
    on_ranking
        Called with the table of predictions for "auto".
    on_note
        Called with each message for the user, one line.

    Returns
    -------
    Bundle
        The bundle that was written, with the result of the comparison in its manifest.

    Raises
    ------
    ExportError
        A checkpoint or an option cannot be exported, or a token differs.
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
        max_new_tokens=max_new_tokens,
        calibration=calibration,
        weight_threshold=weight_threshold,
        workload=workload or Workload(),
        check=check,
        force=force,
    )
    export = _Export(model, output, options, on_step, on_ranking, on_note)
    try:
        _prepare(export)
        _load(export)
        _generate(export)
        _trace(export)
        _choose_variant(export)
        _rewrite(export)
        _lower_precision(export)
        return _write(export)
    except BaseException as error:
        if is_panic(error):
            raise ExportError(
                f"a library panicked on this checkpoint, its tokenizer most likely ({first_line(error)}); restore the "
                "tokenizer's files, or remove them to export without a tokenizer"
            ) from error
        raise


@dataclass
class _Export:
    """One export: what was asked for, then what each step makes. ``_write`` deletes the fields that hold the model."""

    model: str | os.PathLike[str]
    output: str | os.PathLike[str] | None
    options: ExportOptions
    on_step: Callable[[str], None]
    on_ranking: Callable[[RenderableType], None]
    on_note: Callable[[str], None]

    choice: Choice = field(init=False)
    target: Path = field(init=False)
    texts: tuple[str, ...] | None = field(init=False)
    """calibration texts of the user's own"""
    checkpoint: Checkpoint = field(init=False)
    reference: Reference | None = field(init=False)
    """outputs of torch; None without the comparison"""
    canonical: ModelGraphs = field(init=False)
    plan: tuple[LayerPlan, ...] = field(init=False)
    guarded: tuple[GuardEntry, ...] = field(init=False)
    """errors that the guard measured"""
    results: list[PassResult] = field(init=False)
    graphs: ModelGraphs = field(init=False)
    """the graphs of the bundle"""
    exact: ModelGraphs | None = field(init=False)
    """the same in float32, to be compared with; None where nothing is"""

    def set_choice(self, choice: Choice) -> None:
        """Set ``choice`` and ``target``. Raises BundleError where the target's path is taken."""
        suffix = "" if self.options.precision == "fp32" else f"-{self.options.precision}"
        self.choice = choice
        self.target = Path(self.output or f"{checkpoint_name(self.model)}-{choice.name}{suffix}")
        check_target(self.target, force=self.options.force)


def _prepare(export: _Export) -> None:
    """Run every check that needs no checkpoint."""
    calibration = export.options.calibration
    export.texts = read_calibration(calibration) if calibration is not None else None
    export.set_choice(export.options.choice())


def _load(export: _Export) -> None:
    """Load the checkpoint, and refuse what cannot be exported of it."""
    options = export.options
    export.on_step(LOADING)
    checkpoint = export.checkpoint = load_checkpoint(export.model)
    choice = options.choice(checkpoint.sizes)
    if choice != export.choice:
        export.set_choice(choice)
    options.check_model(choice, checkpoint.sizes)
    check_speech(checkpoint)
    if options.max_new_tokens is not None:
        set_max_new_tokens(checkpoint, options.max_new_tokens)
    if note := disable_sampling(checkpoint):
        export.on_note(note)
    check_settings(checkpoint, supported=options.check)


def _generate(export: _Export) -> None:
    """Generate with torch, where the bundle is to be compared with it."""
    export.reference = None
    if export.options.check:
        export.on_step(GENERATING)
        export.reference = make_reference(export.checkpoint)


def _trace(export: _Export) -> None:
    """Trace the model once; every variant is a rewrite of this trace."""
    export.on_step(TRACING)
    export.canonical = trace(export.checkpoint)


def trace(checkpoint: Checkpoint) -> ModelGraphs:
    """The canonical graphs of a checkpoint; their weights share memory with the torch model.

    Raises ExportError where torch's exporter fails, or fixes a size that must be dynamic.
    """
    return checkpoint.family.trace(checkpoint.model, checkpoint.sizes)


def _choose_variant(export: _Export) -> None:
    """Make the choice for ``auto``. Raises ExportError where no variant fits the memory limit."""
    if export.choice.preset is not None:
        return
    options, checkpoint = export.options, export.checkpoint
    workload, precision = options.workload, options.precision
    if precision != "fp32" and workload.gflop_s is None:
        export.on_note(f"the machine's matrix rate is float32's; pass --gflop-s, the serving machine's in {precision}")
    run, machine = workload.run_size(checkpoint, options.itemsize), workload.machine()
    weights = weight_bytes(checkpoint, options.itemsize)
    ranked, impossible = rank(export.canonical, run, machine, weights, workload.memory_limit)
    export.on_ranking(ranking_table(ranked, impossible, run, machine))
    best = best_of(ranked).variant
    export.choice = Choice(best, PRESETS[best], f"auto: {best} is predicted to be fastest")


def _rewrite(export: _Export) -> None:
    """Rewrite the graphs to the plan; a layer that the guard finds too inexact gets a safer kind of cache."""
    options, canonical = export.options, export.canonical
    assert export.choice.preset is not None
    export.plan = same_for_all(export.choice.preset, canonical.sizes.L, export.choice.reason)
    export.guarded = ()
    export.on_step(REWRITING)
    export.graphs, export.results = rewrite(canonical, export.plan)  # first: the guard cannot measure what this refuses
    if needs_guard(export.plan):
        export.on_step(MEASURING)
        activations = calibrate(export.checkpoint, export.texts, export.reference)
        plan, measured = guard(canonical, export.plan, activations, options.precision)
        export.guarded = tuple(result.entry() for result in measured)
        if plan != export.plan:
            export.plan = plan
            export.graphs, export.results = rewrite(canonical, plan)
    if options.weight_threshold:
        export.results.append(skip_small_weights(export.graphs, options.weight_threshold))
    options.check_memory(export.checkpoint, export.plan)


def _lower_precision(export: _Export) -> None:
    """Lower the precision of the graphs; the float32 ones are kept where the error is to be measured."""
    precision = export.options.precision
    export.exact = None
    if precision == "fp32":
        return
    graphs, results = to_precision(export.graphs, precision)
    export.exact = export.graphs if export.options.check else None
    export.graphs = graphs
    export.results += results


def _write(export: _Export) -> Bundle:
    """Write the bundle, measure the error of its precision, and compare it with torch.

    The model is freed before the bundle is loaded beside it, so that the peak of memory is that of one of them.
    """
    options = export.options
    _note_lost_engines(export)
    export.on_step(WRITING)
    del export.canonical

    def fill(folder: Path) -> Manifest:
        manifest = write_files(
            folder,
            export.checkpoint,
            export.graphs,
            export.results,
            export.plan,
            export.guarded,
            variant=export.choice.name,
            precision=options.precision,
            weight_threshold=options.weight_threshold,
        )
        del export.checkpoint, export.results
        error = _measure_precision(export, folder, manifest)
        if export.reference is None:
            return manifest
        export.on_step(COMPARING)
        manifest = manifest.model_copy(update={"precision_error": error})
        (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")  # a draft, for the runner to load
        return manifest.model_copy(update={"parity": compare(folder, manifest, export.reference)})

    return write_bundle(export.target, fill, force=options.force)


def _note_lost_engines(export: _Export) -> None:
    if lost := engine_names(export.target):
        rebuild = f"build them again: build-engine {export.target}"
        fix = rebuild if export.options.precision == "fp32" else "engines need an fp32 bundle"
        export.on_note(f"the engines of the old bundle are deleted with it ({', '.join(lost)}); {fix}")


def _measure_precision(export: _Export, folder: Path, manifest: Manifest) -> PrecisionErrorEntry | None:
    """Free the graphs; before that write those whose error is to be measured, after it measure. None in float32."""
    if export.exact is None:
        del export.graphs
        gc.collect()
        return None
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
        write_rounding_pair(Path(scratch), folder, manifest, export.exact, export.graphs)
        del export.exact, export.graphs
        gc.collect()
        return measure_rounding_pair(Path(scratch), manifest)
