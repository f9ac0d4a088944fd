"""The steps of an export: load, generate with torch, trace, rewrite, measure, write, compare with torch."""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from tightbeam.deploy.bundle.engine_files import engine_names
from tightbeam.deploy.bundle.manifest import (
    MANIFEST,
    AlignmentEntry,
    DivergenceEntry,
    GuardEntry,
    Manifest,
    ParityReport,
    PrecisionErrorEntry,
    QuantizedCacheEntry,
    QuantizedEntry,
)
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import write_bundle
from tightbeam.deploy.errors import BundleError, is_panic
from tightbeam.export.accuracy.activations import AttentionActivations, channels_of
from tightbeam.export.accuracy.alignment_layer import choose_alignment
from tightbeam.export.accuracy.cache_guard import INT8_CACHE_OPTIONS, check_caches, measure_caches
from tightbeam.export.accuracy.calibration import calibrate, calibration_samples, rounding_samples
from tightbeam.export.accuracy.calibration_run import CalibrationRun, Outputs, apart
from tightbeam.export.accuracy.divergence import (
    entries_of,
    steps_before_end,
    why_not,
    widened,
    within_budget,
)
from tightbeam.export.accuracy.gptq import ROWS_TO_FIT, STEPS_TO_FIT
from tightbeam.export.accuracy.guard import guard
from tightbeam.export.accuracy.key_scales import choose_key_scales, with_scaled_keys
from tightbeam.export.accuracy.parity import check_loads, compare, sequences_of
from tightbeam.export.accuracy.precision_error import EXACT, measure_rounding_pair, speed_note, write_rounding_pair
from tightbeam.export.accuracy.product_guard import (
    forms_of,
    int4_error,
    measure_products,
    readers_of,
    rounded_matrices,
    w8a16_error,
)
from tightbeam.export.accuracy.product_rows import product_rows
from tightbeam.export.accuracy.reference import Reference, make_reference
from tightbeam.export.accuracy.scale_choice import choose_scales, scaled_rows
from tightbeam.export.accuracy.screen_choice import ROWS_TO_CHOOSE, STEPS_TO_CHOOSE, choose_directions
from tightbeam.export.auto.ranking import best_of, rank, ranking_table, refusals_by_graphs
from tightbeam.export.checkpoint.alignment import alignment_of
from tightbeam.export.checkpoint.audio import check_speech
from tightbeam.export.checkpoint.chat_template import note_of_chat_template, set_chat_template
from tightbeam.export.checkpoint.generation import check_settings, disable_sampling, limit_length, set_max_new_tokens
from tightbeam.export.checkpoint.image import check_image
from tightbeam.export.checkpoint.load import Checkpoint, load_files
from tightbeam.export.checkpoint.whisper_prompt import note_of_prompt
from tightbeam.export.choice import Choice
from tightbeam.export.errors import ExportError, first_line
from tightbeam.export.machine_checks import weight_itemsize
from tightbeam.export.one_graph.check import check_one_graph, check_text_graph
from tightbeam.export.one_graph.rules import options_in_graph
from tightbeam.export.one_graph.text import check_checkpoint_tokenizer
from tightbeam.export.one_graph.write import write_graphs
from tightbeam.export.options import ExportOptions
from tightbeam.export.preparation import Preparation, check_memory, run_of
from tightbeam.export.progress import STEPS
from tightbeam.export.tables import caches_table, divergences_table, inexact_options, products_table
from tightbeam.export.tracing.tested_release import advice_for_another_release
from tightbeam.export.tracing.torch_export import REPORT
from tightbeam.export.writing.bundle_files import write_files
from tightbeam.export.writing.graphs import weight_bytes
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    SOURCE,
    LayerPlan,
    ModelGraphs,
    PassError,
    PassResult,
    RunSize,
    needs_guard,
    plan_bytes,
    rewrite,
    same_for_all,
    skip_small_weights,
    to_precision,
)
from tightbeam.graph_passes.caches.cost import count_weights, predict
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import Int4Matrix
from tightbeam.graph_passes.precision.integers import IN_BLOCKS, IN_GGML, IN_INT8, Made, ggml_matrices, made_of
from tightbeam.graph_passes.precision.lower_precision import INTEGERS
from tightbeam.graph_passes.precision.move_key_scales import move_key_scales
from tightbeam.graph_passes.precision.move_scales import move_scales
from tightbeam.graph_passes.precision.quantize import with_short_rows
from tightbeam.graph_passes.precision.scale_groups import scale_groups
from tightbeam.graph_passes.precision.screen_head import head_site
from tightbeam.graph_passes.precision.sites import Site, sites

__all__ = ["run_export", "trace"]

_Activations = tuple[Sequence[AttentionActivations], Sequence[AttentionActivations]]

_, GENERATING, TRACING, REWRITING, MEASURING_ATTENTION, MEASURING_PRODUCTS, WRITING, ROUNDING, COMPARING = STEPS


def run_export(
    preparation: Preparation,
    options: ExportOptions,
    on_step: Callable[[str], None],
    on_table: Callable[[RenderableType], None],
    on_note: Callable[[str], None],
) -> Bundle:
    """Export a checkpoint whose files and options were checked; the first step has been announced.

    Raises ExportError, PassError and BundleError as ``export_model``.
    """
    export = _Export(preparation, options, on_step, on_table, on_note)
    try:
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
    """One export: what was requested, then what each step makes. ``_write`` deletes the fields that hold the model."""

    preparation: Preparation
    options: ExportOptions
    on_step: Callable[[str], None]
    on_table: Callable[[RenderableType], None]
    on_note: Callable[[str], None]

    choice: Choice = field(init=False)
    candidates: Sequence[tuple[Choice, float]] = field(init=False)
    """the choice; for ``auto`` all that fit, by predicted seconds of a run if the guard changes nothing"""
    seconds: Callable[[Sequence[LayerPlan]], float] = field(init=False)
    """predicted seconds of a run with a plan, infinite beyond the memory limit; 0 without ``auto``"""
    checkpoint: Checkpoint = field(init=False)
    reference: Reference | None = field(init=False)
    """outputs of torch; None without the comparison"""
    canonical: ModelGraphs = field(init=False)
    alignment: AlignmentEntry | None = field(init=False)
    """the cross-attentions that align the output with the source"""
    plan: tuple[LayerPlan, ...] = field(init=False)
    guarded: tuple[GuardEntry, ...] = field(init=False)
    """errors that the guard measured"""
    products: tuple[QuantizedEntry, ...] = field(init=False)
    """errors of the products that int8 quantises; empty in other precisions"""
    divergences: tuple[DivergenceEntry, ...] = field(init=False)
    """how their forms were chosen; empty in other precisions"""
    known_divergence: float | None = field(init=False)
    """divergence of Q8_0, or Q4_0 for int4, on the same inputs; None in other precisions"""
    caches: tuple[QuantizedCacheEntry, ...] = field(init=False)
    """errors of the caches in int8; empty without them"""
    cache_divergence: float | None = field(init=False)
    """divergence of float32 graphs with these caches in int8; None without them"""
    directions: Array | None = field(init=False)
    """along which screened logits in int8 are estimated, float32 [X, K]; None without them"""
    results: list[PassResult] = field(init=False)
    graphs: ModelGraphs = field(init=False)
    """the graphs of the bundle"""
    exact: ModelGraphs | None = field(init=False)
    """the same in float32, to compare with; None if nothing is compared"""


def _load(export: _Export) -> None:
    """Load the checkpoint, and refuse one that cannot be exported."""
    options = export.options
    export.choice = export.preparation.choice
    checkpoint = export.checkpoint = load_files(export.preparation.files)
    check_speech(checkpoint)
    check_image(checkpoint)
    # Errors before minutes of work.
    alignment_of(checkpoint)
    if export.preparation.calibration is not None:
        calibration_samples(checkpoint, export.preparation.calibration)
    if options.max_new_tokens is not None:
        set_max_new_tokens(checkpoint, options.max_new_tokens)
    for note in (limit_length(checkpoint), disable_sampling(checkpoint), _note_of_global_tokens(checkpoint)):
        if note:
            export.on_note(note)
    if export.preparation.chat_template is not None:
        set_chat_template(checkpoint.tokenizer, export.preparation.chat_template)
    if note := note_of_chat_template(checkpoint.tokenizer):
        export.on_note(note)
    check_settings(checkpoint, supported=options.check or options.one_graph)
    if options.one_graph:
        has_windows = checkpoint.family.has_windows
        options_in_graph(checkpoint.generation_config, {}, checkpoint.sizes, has_windows=has_windows)
    if options.with_tokenizer:
        encodes = not (checkpoint.family.is_speech or checkpoint.family.reads_images)
        if note := check_checkpoint_tokenizer(checkpoint.tokenizer, checkpoint.sizes, encodes=encodes):
            export.on_note(note)
    if note := _note_of_prompt(checkpoint):
        export.on_note(note)


def _note_of_global_tokens(checkpoint: Checkpoint) -> str:
    """A note for the user if a model could have global attention and has none, else ""."""
    if not checkpoint.family.takes_global_tokens or checkpoint.family.global_tokens:
        return ""
    return (
        "no token has global attention, as in model.generate without a global_attention_mask; --global-tokens 1 gives "
        "it to the first one, as the published summarizers take it"
    )


def _note_of_prompt(checkpoint: Checkpoint) -> str:
    """A note for the user of a multilingual Whisper without a task or a language, else ""."""
    if not checkpoint.family.has_windows:
        return ""
    return note_of_prompt(checkpoint.generation_config, checkpoint.sizes.vocabulary)


def _generate(export: _Export) -> None:
    """Generate with torch, if the bundle is to be compared with it."""
    export.reference = None
    if export.options.check:
        export.on_step(GENERATING)
        given = None if export.options.is_exact else export.preparation.calibration
        export.reference = make_reference(export.checkpoint, calibration_samples(export.checkpoint, given))


def _trace(export: _Export) -> None:
    """Trace the model once; every variant is a rewrite of this trace.

    Raises ExportError for any failure if the installed transformers is another release than the tested one.
    """
    export.on_step(TRACING)
    try:
        export.canonical = trace(export.checkpoint)
    except Exception as error:
        advice = advice_for_another_release()
        if not advice:
            raise
        reason = str(error) if isinstance(error, (ExportError, PassError)) else first_line(error)
        raise ExportError(f"{reason.removesuffix(f'; {REPORT}')}; {advice}") from error
    export.alignment = choose_alignment(export.checkpoint, export.preparation.calibration)
    if export.alignment is not None:
        export.canonical.alignment_heads = export.alignment.heads


def trace(checkpoint: Checkpoint) -> ModelGraphs:
    """The canonical graphs of a checkpoint; their weights share memory with the torch model.

    Raises ExportError if torch's exporter fails, or fixes a size that must be dynamic.
    """
    return checkpoint.family.trace(checkpoint.model, checkpoint.sizes)


def _choose_variant(export: _Export) -> None:
    """Rank the variants for ``auto``. Raises ExportError if no variant fits the memory limit."""
    export.candidates, export.seconds = [(export.choice, 0.0)], lambda plan: 0.0
    if export.choice.preset is not None:
        return
    options, checkpoint = export.options, export.checkpoint
    workload, precision = options.workload, options.precision
    if precision == "fp16" and workload.gflop_s is None:
        export.on_note(
            "times were predicted with this machine's float32 rate; pass the serving machine's fp16 rate as --gflop-s"
        )
    run = _run_size(export)
    machine, origin = workload.machine(integers=run.has_integers)
    impossible = refusals_by_graphs(export.canonical, run)
    counts = count_weights(export.canonical)
    weights = _weight_bytes(export)
    ranked = rank(checkpoint.sizes, counts, impossible, run, machine, weights, workload.memory_limit)
    export.on_table(ranking_table(ranked, impossible, run, machine, origin, checkpoint.sizes.decoder_only))
    best_of(ranked)
    export.candidates = [
        (
            Choice(each.variant, PRESETS[each.variant], f"auto: {each.variant} is predicted to be fastest"),
            each.prediction.total,
        )
        for each in ranked
        if not each.refused
    ]
    limit = math.inf if workload.memory_limit is None else workload.memory_limit - weights

    def seconds(plan: Sequence[LayerPlan]) -> float:
        if sum(plan_bytes(plan, checkpoint.sizes, run)) > limit:
            return math.inf
        return predict(plan, checkpoint.sizes, run, counts, machine).total

    export.seconds = seconds


def _rewrite(export: _Export) -> None:
    """Rewrite the graphs to the plan; a layer that the guard finds too inexact gets a safer kind of cache.

    Numbers beside the keys take time, and safer kinds of cache do. So ``auto`` takes the candidate that is predicted to
    be fastest as the guard leaves it. Once one is faster than the next candidate could be, the others are not measured.
    """
    options = export.options
    export.caches, export.cache_divergence = (), None
    export.on_step(REWRITING)
    activations: _Activations | None = None
    least, fastest = math.inf, None
    for choice, at_best in export.candidates:
        if at_best >= least:
            break
        activations = _rewrite_to(export, choice, activations)
        seconds = export.seconds(export.plan)
        if fastest is None or seconds < least:
            least = seconds
            fastest = export.choice, export.plan, export.guarded, export.graphs, export.results
    assert fastest is not None
    export.choice, export.plan, export.guarded, export.graphs, export.results = fastest
    if options.int8_caches:
        assert activations is not None
        _guard_caches(export, activations)
    if options.weight_threshold:
        export.results.append(skip_small_weights(export.graphs, options.weight_threshold))
    if options.precision not in INTEGERS:  # with integers, bytes are known when the graphs are quantised
        _check_memory(export, _weight_bytes(export))


def _rewrite_to(export: _Export, choice: Choice, activations: _Activations | None) -> _Activations | None:
    """Rewrite the graphs to a choice, with the caches that the guard leaves it; returns the activations it measured on.

    ``activations``: of an earlier choice.
    """
    options, canonical = export.options, export.canonical
    assert choice.preset is not None
    export.choice, export.guarded = choice, ()
    export.plan = same_for_all(choice.preset, canonical.sizes.L, choice.reason)
    export.graphs, export.results = rewrite(canonical, export.plan)  # first: the guard cannot measure what this refuses
    if not needs_guard(export.plan) and not options.int8_caches:
        return activations
    _try_precision(export)
    if activations is None:
        export.on_step(MEASURING_ATTENTION)
        activations = calibrate(export.checkpoint, export.preparation.calibration, export.reference)
        canonical.channels = channels_of(*activations)
    plan, measured = guard(canonical, export.plan, activations, options.precision, options.cache_precision)
    export.guarded = tuple(result.entry() for result in measured)
    if plan != export.plan:
        export.plan = plan
        export.graphs, export.results = rewrite(canonical, plan)
    return activations


def _try_precision(export: _Export) -> None:
    """Raise PassError now for what the precision refuses after the measurements, which are slow.

    Not float16 if values are made of keys: the inverse of a badly conditioned weight may be beyond it, until the guard
    gives the keys another form.
    """
    options = export.options
    made_of_keys = any(SOURCE[layer.source].key_forms or GENERATED[layer.generated].key_forms for layer in export.plan)
    if (options.precision == "fp16" and not made_of_keys) or options.int8_caches:
        _to_precision(export, "fp32" if options.precision in INTEGERS else options.precision)


def _to_precision(export: _Export, precision: str, **options: Any) -> tuple[ModelGraphs, list[PassResult]]:
    """Copy the graphs in a precision, with caches in the precision that the export's options give them."""
    caches = export.options.cache_precision, export.options.generated_cache_precision
    return to_precision(
        export.graphs, precision, cache_precision=caches[0], generated_cache_precision=caches[1], **options
    )


def _guard_caches(export: _Export, activations: _Activations) -> None:
    """Measure the caches in int8. Raises ExportError, after their table, if one is not exact enough."""
    by_cache = dict(zip(("source", "generated"), activations, strict=True))
    given = {cache: by_cache[cache] for cache in export.options.int8_caches}
    given = _move_key_scales(export, given)
    export.caches = measure_caches(export.canonical, export.plan, given)
    try:
        check_caches(export.caches)
    except ExportError:
        export.on_table(caches_table(export.caches))
        raise
    run = _calibration_run(export)
    exact = run(export.graphs)
    quantized, _ = _to_precision(export, "fp32")
    export.cache_divergence = run.divergence(quantized, exact, _counted(export, exact))
    budget = export.options.cache_budget
    if export.cache_divergence > budget:
        export.on_table(caches_table(export.caches))
        both = len(given) > 1
        raise ExportError(
            f"the {' and '.join(given)} cache{'s' * both} in int8 move{'s' * (not both)} the distribution of the next "
            f"token by {export.cache_divergence:.2g} nats, over the budget of {budget:g}; leave "
            f"{' and '.join(INT8_CACHE_OPTIONS[cache] for cache in given)} out, or raise --max-divergence"
        )


def _move_key_scales(
    export: _Export, given: dict[str, Sequence[AttentionActivations]]
) -> dict[str, Sequence[AttentionActivations]]:
    """Move scales of channels from keys into queries where keys in int8 are then more exact.

    Returns the activations with scaled queries and keys.
    """
    scales = choose_key_scales(export.canonical, export.plan, given)
    moved = move_key_scales(export.canonical, **scales)
    if moved.matched:
        export.graphs, export.results = rewrite(export.canonical, export.plan)
    export.results.append(moved)
    decoder_only = export.canonical.sizes.decoder_only
    return {
        cache: [
            with_scaled_keys(seen, scales["generated" if decoder_only else cache].get(layer))
            for layer, seen in enumerate(by_layer)
        ]
        for cache, by_layer in given.items()
    }


def _calibration_run(export: _Export) -> CalibrationRun:
    """The calibration inputs, and how graphs are run over them."""
    checkpoint = export.checkpoint
    samples = calibration_samples(checkpoint, export.preparation.calibration)
    parent, decoder_only = export.preparation.target.absolute().parent, export.graphs.sizes.decoder_only
    return CalibrationRun(samples, checkpoint.generation_config, parent, decoder_only=decoder_only)


def _counted(export: _Export, exact: Outputs) -> Array:
    """The steps of calibration inputs that a divergence counts."""
    return steps_before_end(exact.tokens, export.checkpoint.generation_config.get("eos_token_id"))


def _check_memory(export: _Export, bytes_of_weights: int) -> None:
    """Raise ExportError if weights and caches exceed the memory limit."""
    limit = export.options.workload.memory_limit
    check_memory(limit, bytes_of_weights, export.plan, export.graphs.sizes, _run_size(export))


def _run_size(export: _Export) -> RunSize:
    """Sizes of the run that the options describe."""
    checkpoint = export.checkpoint
    return run_of(export.options, checkpoint.family, checkpoint.sizes, checkpoint.generation_config)


def _weight_bytes(export: _Export) -> int:
    """Bytes of the model's parameters in the bundle's precision; of integers a lower bound."""
    numbers = sum(tensor.numel() for tensor in export.checkpoint.model.parameters())
    return int(weight_itemsize(export.options.precision) * numbers)


def _lower_precision(export: _Export) -> None:
    """Give the graphs the form of a precision, and keep the old graphs if the error is to be measured."""
    precision = export.options.precision
    export.exact = None
    export.products, export.divergences, export.known_divergence, export.directions = (), (), None, None
    made: Made = {}
    int4 = _guard_products(export, made) if precision in INTEGERS else {}
    chosen = {"forms": forms_of(export.products), "int4": int4, "directions": export.directions, "made": made}
    graphs, results = _to_precision(export, precision, screened=export.options.screen_logits, **chosen)
    is_float32 = precision == "fp32" and not export.options.int8_caches
    export.exact = export.graphs if export.options.check and not is_float32 else None
    export.graphs = graphs
    export.results += results
    if precision in INTEGERS:  # the graphs know which weights stay float32
        _check_memory(export, weight_bytes(graphs))


def _guard_products(export: _Export, made: Made) -> dict[str, Int4Matrix]:
    """Round the matrices to integers, measure the error of each product and of all together, and choose their forms.

    Adds the matrices that it quantises to ``made``. Returns the matrices of 4 bits by the names of their products.
    Raises ExportError if too few products can have integers.
    """
    export.on_step(MEASURING_PRODUCTS)
    precision, checkpoint, graphs = export.options.precision, export.checkpoint, export.graphs
    in_int4 = precision == "int4"
    if screened := export.options.screen_logits:
        head_site(graphs)  # or PassError
    samples = rounding_samples(checkpoint, export.preparation.calibration)
    fitting, measured = apart(samples)
    generation, parent = checkpoint.generation_config, export.preparation.target.absolute().parent
    of_run = partial(CalibrationRun, generation=generation, beside=parent, decoder_only=graphs.sizes.decoder_only)
    found = sites(graphs)
    rows, _ = product_rows(graphs, found, of_run(fitting, most_rows=ROWS_TO_FIT, most_steps=STEPS_TO_FIT, scored=False))
    groups, _ = scale_groups(graphs)
    scales = choose_scales(groups, found, rows, int4_error if in_int4 else w8a16_error)
    export.results.append(move_scales(graphs, scales))
    found, rows = sites(graphs), scaled_rows(groups, scales, rows)
    rounded = rounded_matrices(found, rows, in_int4=in_int4, in_blocks=not screened)
    if screened:
        export.directions = _directions(
            export, of_run(samples, most_rows=ROWS_TO_CHOOSE, most_steps=STEPS_TO_CHOOSE, scored=False)
        )
    run = of_run(measured)
    del rows
    rows, exact = product_rows(graphs, found, run)
    entries = measure_products(found, rows, rounded)
    del rows
    counted = _counted(export, exact)
    export.known_divergence = _known_divergence(
        graphs, found, lambda known: run.divergence(known, exact, counted), in_4_bits=in_int4
    )
    made |= made_of(found, rounded.int8, IN_INT8) | made_of(found, rounded.blocks, IN_BLOCKS)
    int4 = dict(rounded.int4)
    del rounded
    wide_graphs: dict[tuple[str, ...], ModelGraphs] = {}  # the last ones, with rows of 16 bits

    def divergence_of(forms: Mapping[str, str]) -> float:
        short = {name for name, form in forms.items() if form == "int8"}
        wide = {name: "w8a16" if name in short else form for name, form in forms.items()}
        key = tuple(wide.values())
        if key not in wide_graphs:
            wide_graphs.clear()
            wide_graphs[key], _ = to_precision(graphs, "int8", wide, int4, made=made)
        return run.divergence(with_short_rows(wide_graphs[key], short, found, made), exact, counted)

    budget = export.options.budget(export.known_divergence, export.cache_divergence or 0.0)
    widenings = within_budget(entries, readers_of(found), divergence_of, budget)
    if (left := widenings[-1].divergence) > budget.most:
        raise ExportError(
            f"with all products in float32 the distribution of the next token moves by {left:.2g} nats, expected 0: "
            "a graph pass is wrong; please report this with the checkpoint's config.json"
        )
    export.products = widened(entries, widenings[-1])
    export.divergences = entries_of(widenings, entries, readers_of(found))
    if refusal := why_not(precision, export.products, export.divergences, budget.most):
        export.on_table(products_table(export.products))
        export.on_table(divergences_table(export.divergences))
        raise ExportError(refusal)
    return int4


def _known_divergence(
    graphs: ModelGraphs, found: Sequence[Site], divergence_of: Callable[[ModelGraphs], float], *, in_4_bits: bool
) -> float | None:
    """The divergence of Q8_0 or Q4_0, as a measure that people know; None if no product can have this form."""
    matrices = ggml_matrices(found, in_4_bits=in_4_bits)
    if not matrices:
        return None
    forms = {site.name: "ggml" if site.name in matrices else "fp32" for site in found}
    known, _ = to_precision(graphs, "int8", forms, made=made_of(found, matrices, IN_GGML))
    return divergence_of(known)


def _directions(export: _Export, run: CalibrationRun) -> Array:
    """Choose the directions along which logits are estimated."""
    head = head_site(export.graphs)
    rows, found = product_rows(export.graphs, [head], run)
    before_end = _counted(export, found).T.reshape(-1)  # rows of a step are side by side
    chosen = choose_directions(
        rows[head.name][before_end], head.values, None if head.bias is None else head.bias.values
    )
    export.on_note(str(chosen))
    return chosen.directions


def _write(export: _Export) -> Bundle:
    """Write the bundle, measure the error of its precision, and compare it with torch.

    The model is freed before the bundle is loaded beside it, so that the memory never holds both.
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
            export.products,
            export.divergences,
            export.known_divergence,
            export.caches,
            export.cache_divergence,
            variant=export.choice.name,
            precision=options.precision,
            cache_precision=options.cache_precision,
            generated_cache_precision=options.generated_cache_precision,
            weight_threshold=options.weight_threshold,
            alignment=export.alignment,
        )
        _check_draft(folder, manifest)
        if export.reference is None or export.exact is not None:  # else the comparison loads it now
            check_loads(folder)
        del export.checkpoint, export.results
        error, float32 = _measure_precision(export, folder, manifest)
        if options.one_graph:
            manifest = write_graphs(folder, manifest, with_tokenizer=options.with_tokenizer)
        if export.reference is None:
            return manifest
        export.on_step(COMPARING)
        manifest = manifest.model_copy(update={"precision_error": error})
        (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")  # a draft, for the runner to load
        parity = compare(folder, manifest, export.reference, float32)
        _check_differing(export, manifest, parity)
        if manifest.one_graph is not None:
            check_one_graph(folder / manifest.one_graph.file, manifest, export.reference)
        if manifest.text_graph is not None:
            check_text_graph(folder, manifest)
        return manifest.model_copy(update={"parity": parity})

    return write_bundle(export.preparation.target, fill, force=options.force)


def _check_draft(folder: Path, manifest: Manifest) -> None:
    """Raise ExportError if no runner would load the bundle, before the slow steps and without the comparison too."""
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    try:
        Bundle.load(folder, verify=False)
    except BundleError as error:
        reason, _, _ = str(error).rpartition(";")
        raise ExportError(
            f"{reason}; there is no new bundle: please report this with the checkpoint's config.json"
        ) from error


def _check_differing(export: _Export, manifest: Manifest, parity: ParityReport) -> None:
    """Raise ExportError if more sequences differ than the options allow, after the table of the products."""
    limit, sequences = export.options.max_differing, parity.samples * parity.settings
    if limit is None or parity.differing <= limit * sequences:
        return
    if export.products:
        export.on_table(products_table(export.products))
    raise ExportError(
        f"{parity.differing} of {sequences} sequences differ from torch's, {parity.differing / sequences:.1%}, over "
        f"max_differing of {limit:.1%}; there is no new bundle: {'lower --max-divergence, ' * manifest.has_integers}"
        f"leave {inexact_options(manifest)} out, or raise --max-differing"
    )


def _note_lost_engines(export: _Export) -> None:
    if lost := engine_names(export.preparation.target):
        rebuild = f"build them again: build-engine {export.preparation.target}"
        fix = rebuild if export.options.precision == "fp32" else "engines need an fp32 bundle"
        export.on_note(f"the engines of the old bundle are deleted with it ({', '.join(lost)}); {fix}")


def _measure_precision(
    export: _Export, folder: Path, manifest: Manifest
) -> tuple[PrecisionErrorEntry | None, list[list[list[int]]] | None]:
    """Write the graphs whose error is to be measured, free them, and measure.

    Returns the error, and the sequences that the reference's inputs give in float32; None twice if nothing is
    measured.
    """
    if export.exact is None:
        del export.graphs
        gc.collect()
        return None, None
    export.on_step(ROUNDING)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
        write_rounding_pair(Path(scratch), folder, manifest, export.exact, export.graphs)
        del export.exact, export.graphs
        gc.collect()
        error, times = measure_rounding_pair(Path(scratch), manifest, inexact_options(manifest))
        if times is not None and (note := speed_note(manifest.precision, times)):
            export.on_note(note)
        assert export.reference is not None
        return error, sequences_of(Path(scratch) / EXACT, export.reference)
