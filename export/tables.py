"""Tables of the export command: cache bytes by variant, results of the passes, errors of the guard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tightbeam.deploy.bundle.manifest import DivergenceEntry, Manifest, QuantizedCacheEntry, QuantizedEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.runtimes.process.memory import ProcessMemory
from tightbeam.graph_passes import PRESETS, LayerPlan, RunSize, Sizes, plan_bytes, presets_of, same_for_all
from tightbeam.graph_passes.precision.sites import FORMS


def titled(title: str, table: Table) -> RenderableType:
    """A table below its title, which is not broken at the table's width."""
    return Group(Text(title), table)


def memory_table(sizes: Sizes, run: RunSize, chosen: Sequence[LayerPlan]) -> RenderableType:
    """Table of variants: bytes of the source and the generated cache of a run.

    The chosen variant is marked; it has a row of its own if its layers match no preset.
    """
    plans = {name: same_for_all(preset, sizes.L, "") for name, preset in presets_of(sizes).items()}
    own = tuple(replace(layer, reason="") for layer in chosen)
    if own not in plans.values():
        plans["this one"] = own
    precision = "fp32" if run.itemsize == 4 else "fp16"
    precision += ", sources in int8" if run.quantized_source else ""
    precision += ", generated in int8" if run.quantized_generated else ""
    table = Table(box=box.SIMPLE)
    for heading in ("variant", "source", "generated", "total", "share", ""):
        table.add_column(heading, justify="left" if heading in ("variant", "") else "right", no_wrap=True)
    whole = sum(PRESETS["baseline"].cache_bytes(sizes, run))
    for name, plan in plans.items():
        source, generated = plan_bytes(plan, sizes, run)
        total = source + generated
        row = (name, f"{source:,}", f"{generated:,}", f"{total:,}", f"{total / whole:.1%}")
        table.add_row(*row, "chosen" if plan == own else "", style="bold" if plan == own else None)
    return titled(f"Bytes of cache in {precision} for {describe_run(run, decoder_only=sizes.decoder_only)}", table)


def process_table(by_batch: Mapping[int, ProcessMemory]) -> RenderableType:
    """Table of the memory of a process on a CPU, by the inputs that run together."""
    table = Table(box=box.SIMPLE)
    for heading in ("batch", "weights", "libraries", "cache", "buffers", "process"):
        table.add_column(heading, justify="right", no_wrap=True)
    for batch, memory in by_batch.items():
        weights = memory.mapped_weights + memory.packed_weights
        parts = (weights, memory.libraries + memory.graphs, memory.caches, memory.buffers, memory.total)
        table.add_row(str(batch), *map(megabytes, parts))
    return titled("Memory of a process on a CPU, by formula (processes share the weights' pages)", table)


def describe_process(by_batch: Mapping[int, ProcessMemory]) -> str:
    """The memory of a process in words, with the parts of the largest batch."""
    totals = " and ".join(
        f"{megabytes(memory.total)} for {'one input' if batch == 1 else f'batch {batch}'}"
        for batch, memory in by_batch.items()
    )
    largest = list(by_batch.values())[-1]
    weights = largest.mapped_weights + largest.packed_weights
    return (
        f"{totals} on a CPU, by formula: weights {megabytes(weights)}, libraries "
        f"{megabytes(largest.libraries + largest.graphs)}, cache {megabytes(largest.caches)}, buffers "
        f"{megabytes(largest.buffers)}"
    )


def describe_run(run: RunSize, *, decoder_only: bool = False) -> str:
    """The sizes of a run in words."""
    source = "prompt" if decoder_only else "source"
    return f"batch {run.B}, {run.M} beams, {source} of {run.N}, output of {run.T} tokens"


def megabytes(count: int) -> str:
    """An amount of memory in words."""
    return f"{count / 1e6:,.1f} MB" if count >= 50_000 else f"{count / 1e3:,.1f} kB"


def duration(seconds: float) -> str:
    """A time with three digits, in a unit of its size."""
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    number = seconds * scale
    return f"{number:,.{0 if number >= 100 else 1 if number >= 10 else 2}f} {unit}"


def passes_table(bundle: Bundle) -> Table:
    """Table of passes: places that each rewrote, and bytes that it saved at batch 1 and the model's full lengths."""
    table = Table(title=f"Passes of {bundle.manifest.variant}, batch 1", title_justify="left", box=box.SIMPLE)
    for heading in ("pass", "places", "bytes saved", ""):
        table.add_column(heading, justify="right" if heading in ("places", "bytes saved") else "left")
    for entry in bundle.manifest.passes:
        table.add_row(entry.name, str(entry.matched), f"{entry.bytes_saved:,}", entry.reason)
    return table


def products_table(entries: Sequence[QuantizedEntry]) -> RenderableType:
    """Table of products and embeddings: the error of each on real rows in int8 and other precisions, and its form."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    in_int4 = any(entry.w4a16 is not None for entry in entries)
    in_blocks = any(entry.blocks is not None for entry in entries)
    headings = ("product", "shape", *["w4a16"] * in_int4, "int8", "w8a16", *["blocks"] * in_blocks, "fp16", "kept")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("product", "kept") else "right", no_wrap=True)
    for entry in entries:
        errors = [_error(entry.w4a16)] if in_int4 else []
        errors += [_error(entry.int8), "" if entry.w8a16 is None else _error(entry.w8a16)]
        errors += [*["" if entry.blocks is None else _error(entry.blocks)] * in_blocks, _error(entry.fp16)]
        shape = " x ".join(map(str, entry.shape))
        table.add_row(entry.name, shape, *errors, entry.kept, style="bold" if entry.kept == "fp32" else None)
    reasons = [f"{entry.name}: {entry.reason}" for entry in entries if entry.reason]
    limits = sorted({entry.allowed for entry in entries}) or [0.0]
    allowed = " or ".join(f"{limit:.0%}" for limit in limits)
    title = (
        f"Relative errors of matrix products and embeddings, on rows that texts give; {allowed} is allowed.\n"
        "w8a16: weights of 8 bits and rows of 16, tried if int8 errs by more" + "; w4a16: weights of 4 bits" * in_int4
    )
    return Group(titled(title, table), *map(Text, reasons))


def divergences_table(entries: Sequence[DivergenceEntry]) -> RenderableType:
    """Table of the measurements by which the forms of products were chosen."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    always = ("int8", "w8a16", "fp32")
    forms = [form for form in FORMS if form in always or any(getattr(entry, form) for entry in entries)]
    for heading in ("divergence", *forms, "matrices"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        counts = [str(getattr(entry, form)) for form in forms]
        table.add_row(f"{entry.divergence:.2g}", *counts, megabytes(entry.bytes))
    return titled("Divergence from float32 in nats a token, by the forms of products and embeddings", table)


def caches_table(entries: Sequence[QuantizedCacheEntry]) -> RenderableType:
    """Table of caches: the error of each layer's attention with the rows of each in int8, and in float16."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("cache", "layer", "rows", "int8", "fp16"):
        table.add_column(heading, justify="left" if heading in ("cache", "rows") else "right", no_wrap=True)
    for entry in entries:
        style = None if entry.int8 is not None and entry.int8 <= entry.allowed else "bold"
        table.add_row(entry.cache, str(entry.layer), entry.part, _error(entry.int8), _error(entry.fp16), style=style)
    allowed = max((entry.allowed for entry in entries), default=0.0)
    return titled(f"Relative errors of attention over a cache in int8; {allowed:.0%} is allowed", table)


def _error(error: float | None) -> str:
    return "not finite" if error is None else f"{error:.2%}"


def describe_products(
    entries: Sequence[QuantizedEntry], divergences: Sequence[DivergenceEntry], known: float | None
) -> str:
    """A sentence for the report about the forms of products and their divergence; empty without integers.

    ``known`` is the divergence of Q8_0, or Q4_0 in int4, on the same inputs.
    """
    if not entries:
        return ""
    kept = {form: sum(entry.kept == form for entry in entries) for form in FORMS}
    precision, form = ("int4", "Q4_0") if kept["w4a16"] else ("int8", "Q8_0")
    parts = [
        f"{kept['int8']} are in int8" if kept["w4a16"] and kept["int8"] else "",
        f"{kept['w8a16']} have rows of 16 bits" if kept["w8a16"] else "",
        f"{kept['blocks']} have these and scales of blocks" if kept["blocks"] else "",
        f"{kept['fp32']} stay in float32" if kept["fp32"] else "",
    ]
    wider = " and ".join(filter(None, parts))
    said = [f"of {len(entries)} products and embeddings {wider} (--verbose shows the errors)"] if wider else []
    if divergences:
        moved = divergences[-1].divergence
        perplexity = f"{100 * math.expm1(moved):.2g}%"
        said.append(
            f"{precision} moves the distribution of the next token by {moved:.2g} nats on the calibration inputs "
            f"({perplexity} of perplexity)"
            + (f"; {form}, as llama.cpp writes it, would move it by {known:.2g}" if known else "")
        )
    return "; ".join(said)


def inexact_options(manifest: Manifest) -> str:
    """The options that make a bundle inexact, in words."""
    options = ["--weight-threshold"] if manifest.weight_threshold else []
    options += ["--short-audio"] if manifest.short_audio else []
    options += [f"--precision {manifest.precision}"] if manifest.precision != "fp32" else []
    caches = {"cache": manifest.cache_precision, "generated-cache": manifest.generated_cache_precision}
    options += [f"--{cache}-precision {precision}" for cache, precision in caches.items() if precision is not None]
    return " with ".join(options)


def guard_table(bundle: Bundle) -> Table:
    """Table of the guard: errors of each layer's rewritten attention on real activations, and the kinds kept."""
    title = f"Relative error of rewritten attention in {bundle.manifest.precision}, on activations that texts give"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    words = ("part", "wanted", "keys", "kept")
    for heading in ("layer", "part", "wanted", "keys", "error", "allowed", "cond(W_K)", "inverted", "kept"):
        table.add_column(heading, justify="left" if heading in words else "right", no_wrap=True)
    for entry in bundle.manifest.guard:
        error = "not finite" if entry.error is None else f"{entry.error:.1e}"
        forms = ("orthonormal" * entry.keys.orthonormal, f"+ {entry.keys.few}" * bool(entry.keys.few))
        keys = " ".join(form for form in forms if form)
        inverted = _condition(entry.inverted_condition) if keys else ""
        figures = (error, f"{entry.allowed:.1e}", _condition(entry.condition), inverted)
        style = None if entry.kept == entry.wanted else "bold"
        table.add_row(str(entry.layer), entry.part, entry.wanted, keys, *figures, entry.kept, style=style)
    return table


def _condition(condition: float | None) -> str:
    return "no inverse" if condition is None else f"{condition:.0e}" if condition else ""
