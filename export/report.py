"""The report of an export: seven lines, and a note for each thing that a user would not expect."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.runtimes.process.memory import memory_of
from tightbeam.export.accuracy.precision_error import describe_error
from tightbeam.export.auto.workload import Workload
from tightbeam.export.checkpoint.whisper_prompt import lacks_task
from tightbeam.export.choice import AUTO, DEFAULT
from tightbeam.export.tables import (
    caches_table,
    describe_process,
    describe_products,
    describe_run,
    divergences_table,
    guard_table,
    inexact_options,
    megabytes,
    memory_table,
    passes_table,
    products_table,
)
from tightbeam.export.writing.entries import plan_of, sizes_of
from tightbeam.graph_passes import PRESETS, RunSize, plan_bytes, presets_of, same_for_all
from tightbeam.graph_passes.precision.lower_precision import itemsize

__all__ = ["details", "next_command", "report", "run_of"]

NO_STEPS: Mapping[str, float] = {}
SMALL = "el"
"""The variant that the report compares with: it has the smallest source cache that is exact for all weights."""


def report(
    bundle: Bundle,
    workload: Workload,
    *,
    variant: str | None,
    seconds: float,
    by_step: Mapping[str, float] = NO_STEPS,
    notes: Sequence[str] = (),
) -> list[str]:
    """The lines of the report, aligned.

    Parameters
    ----------
    bundle
        The bundle that was written.
    workload
        The runs that the user described, for the bytes of cache.
    variant
        The variant that the user named, if any.
    seconds
        Time of the export.
    by_step
        Time of each step, by name.
    notes
        Further sentences for the user.
    """
    manifest = bundle.manifest
    size = sum(entry.bytes for entry in manifest.files())
    rows = [
        ("variant", f"{manifest.variant}, {_why(manifest, variant)}"),
        ("on disk", f"{megabytes(size)} in {bundle.path}"),
        ("cache", _cache(manifest, run_of(manifest, workload))),
        *_process(bundle, run_of(manifest, workload)),
        ("check", _check(manifest)),
        ("time", _time(seconds, by_step)),
        ("next", next_command(bundle)),
    ]
    rows += [("note", note) for note in (*_notes(manifest, run_of(manifest, workload)), *notes)]
    return [f"{label:<9}{text}" for label, text in rows]


def run_of(manifest: Manifest, workload: Workload) -> RunSize:
    """Sizes of the runs that a bundle was made for."""
    whole = not manifest.reads_text
    run = workload.run_size(sizes_of(manifest), manifest.generation, itemsize(manifest.precision), whole=whole)
    caches = manifest.int8_caches
    return replace(run, quantized_source="source" in caches, quantized_generated="generated" in caches)


def details(bundle: Bundle, workload: Workload) -> RenderableType:
    """Tables that the report leaves out: passes, errors of the guard, and the caches of the other variants."""
    manifest = bundle.manifest
    tables: list[RenderableType] = [passes_table(bundle), *([guard_table(bundle)] if manifest.guard else [])]
    tables += [products_table(manifest.quantized)] if manifest.quantized else []
    tables += [divergences_table(manifest.divergences)] if manifest.divergences else []
    tables += [caches_table(manifest.quantized_caches)] if manifest.quantized_caches else []
    return Group(*tables, memory_table(sizes_of(manifest), run_of(manifest, workload), plan_of(manifest)))


def next_command(bundle: Bundle) -> str:
    """A command that runs the bundle on one input."""
    manifest, path = bundle.manifest, shlex.quote(str(bundle.path))
    if manifest.speech is not None:
        asked = manifest.has_windows and manifest.generation.get("task_to_id")
        lacking = asked and lacks_task(manifest.generation, manifest.sizes.vocabulary)
        return f"run-model {path} speech.wav" + (" --task transcribe" if lacking else "")
    if manifest.image is not None:
        return f"run-model {path} page.png"
    if manifest.tokenizer is None:
        return f'echo "[5, 6, 7]" | run-model {path} --ids'
    if manifest.tokenizer.has_chat_template:
        return f"run-model {path} --chat"
    text = "The beginning of a text" if manifest.sizes.decoder_only else "A text."
    return f'echo "{text}" | run-model {path}'


def _time(seconds: float, by_step: Mapping[str, float]) -> str:
    """The time of an export, and that of each step which took a second or more."""
    long = [f"{step} {took:.0f} s" for step, took in by_step.items() if took >= 1]
    return f"{seconds:.0f} seconds{': ' if long else ''}{', '.join(long)}"


def _why(manifest: Manifest, variant: str | None) -> str:
    """The reason for the bundle's variant."""
    if variant == AUTO:
        return "the fastest by prediction"
    if variant is None and manifest.variant == DEFAULT:
        source = "prompt" if manifest.sizes.decoder_only else "source"
        return f"the default: it keeps the {source}'s keys and values once for all beams"
    if any(entry.kept != entry.wanted for entry in manifest.guard):
        return "as asked for, except in the layers of the notes below"
    return "as asked for"


def _cache(manifest: Manifest, run: RunSize) -> str:
    sizes = sizes_of(manifest)
    own, whole = sum(plan_bytes(plan_of(manifest), sizes, run)), sum(PRESETS["baseline"].cache_bytes(sizes, run))
    text = f"{megabytes(own)} for {describe_run(run, decoder_only=sizes.decoder_only)}"
    return text if manifest.variant == "baseline" else f"{text}; an ordinary export keeps {megabytes(whole)}"


def _process(bundle: Bundle, run: RunSize) -> list[tuple[str, str]]:
    """The memory of a process for one input and for the batch; nothing in float16, which is for GPUs."""
    manifest = bundle.manifest
    if manifest.precision == "fp16":
        return []
    found = {}
    for B in dict.fromkeys((1, run.B)):
        caches = sum(plan_bytes(plan_of(manifest), sizes_of(manifest), replace(run, B=B)))
        found[B] = memory_of(bundle, B=B, M=run.M, N=run.N, caches=caches)
    return [("process", describe_process(found))]


def _check(manifest: Manifest) -> str:
    """The comparison with torch in plain words."""
    parity = manifest.parity
    if parity is None:
        return "not done (--no-check): the bundle was not compared with torch"
    sequences = parity.samples * parity.settings
    if parity.differing:
        own = (
            ""
            if parity.differing_float32 is None
            else f" ({parity.differing_float32} from the same bundle's in float32)"
        )
        return (
            f"{parity.differing} of {sequences} sequences differ from torch's{own}, which {inexact_options(manifest)} "
            f"allows; the {parity.tokens} generated tokens of the others are equal"
        )
    ties = f"; {parity.ties} more differ by rounding alone, between equally good ones" if parity.ties else ""
    return (
        f"passed: {parity.tokens} generated tokens of {sequences - parity.ties} sequences equal torch's, scores within "
        f"{parity.max_score_error:.1g}{ties}"
    )


def _notes(manifest: Manifest, run: RunSize) -> Iterator[str]:
    """Notes about what a user would not expect, and about the cache that `el` would save."""
    sizes = sizes_of(manifest)
    if SMALL in presets_of(sizes):
        own = sum(plan_bytes(plan_of(manifest), sizes, run))
        small = sum(plan_bytes(same_for_all(PRESETS[SMALL], sizes.L, ""), sizes, run))
        if small < own and manifest.variant != SMALL:
            yield f"--variant {SMALL} would keep {megabytes(small)} of cache, {megabytes(own - small)} less"
    fallen: dict[tuple[str, str, str], list[int]] = {}
    for entry in manifest.guard:
        if entry.kept != entry.wanted:
            fallen.setdefault((entry.part, entry.wanted, entry.kept), []).append(entry.layer)
    for (part, wanted, kept), layers in fallen.items():
        where = f"layer {layers[0]} keeps" if len(layers) == 1 else f"layers {', '.join(map(str, layers))} keep"
        yield (
            f"{where} {kept} as {part} cache in place of {wanted}, which is not exact enough with these weights "
            "(--verbose shows the errors)"
        )
    if said := describe_products(manifest.quantized, manifest.divergences, manifest.ggml_divergence):
        yield said
    if manifest.cache_divergence is not None:
        caches = " and ".join(manifest.int8_caches)
        yield f"the {caches} cache in int8 alone moves the distribution by {manifest.cache_divergence:.2g} nats"
    if manifest.precision != "fp32" or manifest.int8_caches:
        yield describe_error(manifest.precision, manifest.precision_error, manifest.error_inputs, manifest.int8_caches)
    if manifest.tokenizer is None:
        yield (
            "the checkpoint has no tokenizer, so the bundle takes and gives token ids"
            if manifest.reads_text
            else "the checkpoint has no tokenizer, so the bundle gives token ids"
        )
