"""Facts about a bundle, computed from ``bundle.json`` alone: the report of `show-bundle`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from tightbeam.deploy.bundle.engine_files import engine_names, load_engine
from tightbeam.deploy.bundle.manifest import MANIFEST, LayerChoice, Manifest, ParityReport, QuantizedEntry
from tightbeam.deploy.bundle.operators import operators_note, operators_version
from tightbeam.deploy.bundle.reader import Bundle, manifest_digest
from tightbeam.deploy.console import counted
from tightbeam.deploy.errors import EngineFileError, InputError, short_repr
from tightbeam.deploy.generation.languages import names_of
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.generation.spoken_language import PROMPTS
from tightbeam.deploy.runtimes.base import resolve, sizes_of, source_outputs
from tightbeam.deploy.runtimes.process.memory import ProcessMemory, memory_of

__all__ = ["Workload", "cache_bytes", "facts_of", "process_memory", "report_of", "workload_of"]


@dataclass(frozen=True)
class Workload:
    """The size of a batch.

    Attributes
    ----------
    batch_size : int
    num_beams : int
    source_length : int
        Tokens of each source or prompt; for a speech model the positions of a window.
    new_tokens : int
        Tokens generated for each source.
    """

    batch_size: int
    num_beams: int
    source_length: int
    new_tokens: int


def workload_of(
    manifest: Manifest,
    *,
    batch_size: int | None = None,
    num_beams: int | None = None,
    source_length: int | None = None,
    new_tokens: int | None = None,
) -> Workload:
    """Complete and check the size of a batch.

    Parameters
    ----------
    manifest : Manifest
    batch_size : int, optional
        1 by default.
    num_beams, new_tokens : int, optional
        By default the values of the checkpoint's generation settings.
    source_length : int, optional
        By default the length of the model's longest source.

    Raises
    ------
    InputError
        A size is not positive, or the model has no positions for it.
    """
    options, sizes = _options(manifest), manifest.sizes
    default_tokens = options.max_length - options.beginning
    if new_tokens is not None and not 1 <= new_tokens < sizes.max_target:
        raise InputError(
            f"--new-tokens {new_tokens} is not possible, the model has {sizes.max_target} positions; "
            f"pass 1 to {sizes.max_target - 1}"
        )
    chosen_tokens = default_tokens if new_tokens is None else new_tokens
    longest = sizes.max_target - chosen_tokens if sizes.decoder_only else sizes.max_source
    if not (manifest.reads_text or manifest.convolutions) and source_length is not None:
        what = "a speech model's windows have" if manifest.speech else "a model's images have"
        raise InputError(f"--source-length is for text, {what} one length; leave it out")
    if source_length is not None and not 1 <= source_length <= longest:
        raise InputError(f"--source-length {source_length} is not possible here; pass 1 to {longest}")
    for option, value in (("--batch-size", batch_size), ("--num-beams", num_beams)):
        if value is not None and value < 1:
            raise InputError(f"{option} {value} is not possible; pass 1 or more")
    return Workload(batch_size or 1, num_beams or options.num_beams, source_length or longest, chosen_tokens)


def cache_bytes(manifest: Manifest, workload: Workload) -> tuple[int, int]:
    """Compute the bytes of a batch's caches at its end.

    Parameters
    ----------
    manifest : Manifest
    workload : Workload

    Returns
    -------
    source, generated : int
        Bytes that a runtime allocates for the source cache and for the generated cache, as in `Runner.cache_bytes`.
    """
    source_length, positions = workload.source_length, workload.new_tokens
    if manifest.sizes.decoder_only:  # the decoder is fed a prompt's last token first
        source_length = max(1, source_length - 1)
    else:
        positions += _options(manifest).beginning - 1
    sizes = sizes_of(workload.batch_size, source_length, workload.num_beams, positions, 1)
    sizes["T"] = positions
    inputs = {tensor.name: tensor for tensor in manifest.decoder.inputs}

    def nbytes(names: Iterable[str]) -> int:
        tensors = [inputs[name] for name in names]
        return sum(math.prod(resolve(tensor.shape, sizes)) * np.dtype(tensor.dtype).itemsize for tensor in tensors)

    source = nbytes(source_outputs(manifest.encoder))
    return source, nbytes(state.input for state in manifest.cache_states)


def process_memory(bundle: Bundle, workload: Workload) -> ProcessMemory | None:
    """Compute the memory of a process that runs a batch on a CPU; None in float16, which is for GPUs."""
    if bundle.manifest.precision == "fp16":
        return None
    caches = sum(cache_bytes(bundle.manifest, workload))
    return memory_of(bundle, B=workload.batch_size, M=workload.num_beams, N=workload.source_length, caches=caches)


def facts_of(bundle: Bundle, workload: Workload) -> dict[str, Any]:
    """Gather the facts of a bundle.

    Parameters
    ----------
    bundle : Bundle
    workload : Workload
        The batch whose caches are computed.

    Returns
    -------
    dict
        Values that JSON can hold. Sizes are in bytes unless a name says otherwise.

    Raises
    ------
    EngineFileError
        The folder of the engines cannot be read.
    """
    manifest = bundle.manifest
    sizes, files = manifest.sizes, manifest.files()
    source, generated = cache_bytes(manifest, workload)
    process = process_memory(bundle, workload)
    provenance = manifest.provenance
    return {
        "bundle": str(bundle.path),
        "format_version": manifest.format_version,
        "operators_version": operators_version(bundle),
        "made_by": manifest.made_by,
        "provenance": None if provenance is None else provenance.model_dump(mode="json"),
        "model": manifest.model,
        "family": manifest.family,
        "kind": _kind(manifest),
        "variant": manifest.variant,
        "precision": manifest.precision,
        "cache_precision": manifest.cache_precision,
        "generated_cache_precision": manifest.generated_cache_precision,
        "weight_threshold": manifest.weight_threshold,
        "global_tokens": manifest.global_tokens,
        "short_audio": manifest.short_audio,
        "sizes": {
            "width": sizes.D,
            "heads": sizes.H,
            "key_heads": sizes.G,
            "key_size": sizes.K,
            "value_size": sizes.V,
            "decoder_layers": sizes.L,
            "vocabulary": sizes.vocabulary,
            "source_vocabulary": sizes.source_vocabulary,
            "max_source": sizes.max_source,
            "max_target": sizes.max_target,
        },
        "layers": [layer.model_dump() for layer in manifest.layers],
        "manifest_sha256": manifest_digest(bundle.path),
        "files": {entry.file: entry.bytes for entry in files},
        "total_bytes": sum(entry.bytes for entry in files),
        "batch": vars(workload),
        "cache": {"source": source, "generated": generated, "total": source + generated},
        "process": None if process is None else {**vars(process), "total": process.total},
        "check": None if manifest.parity is None else manifest.parity.model_dump(),
        "precision_error": None if manifest.precision_error is None else manifest.precision_error.model_dump(),
        "quantized": [entry.model_dump() for entry in manifest.quantized],
        "quantized_caches": [entry.model_dump() for entry in manifest.quantized_caches],
        "cache_divergence": manifest.cache_divergence,
        "fallbacks": [entry.model_dump() for entry in manifest.guard if entry.kept != entry.wanted],
        "generation": manifest.generation,
        "tokenizer": None if manifest.tokenizer is None else manifest.tokenizer.kind,
        "engines": {name: _engine(bundle, name) for name in engine_names(bundle.path)},
    }


def report_of(bundle: Bundle, workload: Workload) -> list[tuple[str, str]]:
    """Describe a bundle in lines of a word and a text.

    Parameters
    ----------
    bundle, workload
        Arguments of `facts_of`.

    Raises
    ------
    EngineFileError
        The folder of the engines cannot be read.
    """
    manifest, facts = bundle.manifest, facts_of(bundle, workload)
    sizes, cache = manifest.sizes, facts["cache"]
    origin = facts["provenance"]
    heads = f"{sizes.H} heads" if sizes.G == sizes.H else f"{sizes.H} heads over {counted(sizes.G, 'key head')}"
    lengths = (
        f"{sizes.max_target:,} positions"
        if sizes.decoder_only
        else f"source of {sizes.max_source:,}, output of {sizes.max_target:,} positions"
    )
    inexact = f", skips weights below {manifest.weight_threshold:g}" if manifest.weight_threshold else ""
    inexact += f", {' and '.join(manifest.int8_caches)} cache in int8" if manifest.int8_caches else ""
    inexact += ", windows without the silence that fills them" if manifest.short_audio else ""
    lines = [
        ("model", f"{manifest.model} ({manifest.family}, {facts['kind']})"),
        ("variant", f"{manifest.variant}, {manifest.precision}{inexact}: {_layers(manifest.layers)}"),
        (
            "sizes",
            f"width {sizes.D:,}, {heads}, {counted(sizes.L, 'decoder layer')}, {sizes.vocabulary:,} tokens, {lengths}",
        ),
        *_global_attention(manifest.global_tokens),
        ("files", _files(facts)),
        ("sha256", f"{facts['manifest_sha256']} of {MANIFEST}, which has that of every other file"),
        (
            "cache",
            f"{_size(cache['total'])} (source {_size(cache['source'])}, generated "
            f"{_size(cache['generated'])}) for a batch of {workload.batch_size}, "
            f"{counted(workload.num_beams, 'beam')}, {counted(workload.source_length, 'source position')}, "
            f"{counted(workload.new_tokens, 'new token')}",
        ),
        *_process(process_memory(bundle, workload)),
        ("check", _check(manifest.parity)),
    ]
    if manifest.precision_error is not None:
        error = manifest.precision_error
        low = "int8" if manifest.precision == "fp32" else manifest.precision
        steps = f"{error.differing} of {error.steps} steps on {manifest.error_inputs}"
        lines.append(("error", f"{low} chooses another token at {steps}"))
    if manifest.quantized:
        lines.append(("products", _products(manifest.quantized)))
    if manifest.divergences:
        divergence = manifest.divergences[-1].divergence
        lines.append(("divergence", f"the products move the distribution of the next token by {divergence:.2g} nats"))
    if manifest.quantized_caches:
        largest, layer, cache, part = max(
            (entry.int8 or 0.0, entry.layer, entry.cache, entry.part) for entry in manifest.quantized_caches
        )
        moved = manifest.cache_divergence
        told = "" if moved is None else f"; it moves the distribution of the next token by {moved:.2g} nats"
        errs = f"attention over it errs by at most {largest:.2%}, by the {part} of layer {layer}'s {cache} cache"
        lines.append(("int8 cache", errs + told))
    lines += [("fallback", text) for text in _fallbacks(manifest)]
    if note := operators_note(bundle):
        lines.append(("operators", note.removeprefix("its operators are ")))
    lines.append(
        (
            "generation",
            ", ".join(f"{name}={short_repr(value)}" for name, value in sorted(manifest.generation.items())),
        )
    )
    if languages := manifest.generation.get("lang_to_id") or manifest.generation.get(PROMPTS):
        lines.append(("languages", f"{len(languages)}: {', '.join(names_of(languages))}"))
    lines.append(("tokenizer", facts["tokenizer"] or "none: takes and returns token ids (--ids)"))
    lines += [("engine", f"{name}: {text}") for name, text in _engines(facts["engines"])]
    if origin is not None:
        versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
        revision = f" at {origin['revision']}" if origin["revision"] else ""
        lines.append(("made", f"{origin['created']} from {origin['source']}{revision} by {versions}"))
    else:
        lines.append(("made", f"by {manifest.made_by}"))
    return lines


def _options(manifest: Manifest) -> GenerationOptions:
    return resolve_settings(manifest.generation, {}, manifest.sizes, speech=manifest.has_windows).for_prompt(1)


def _process(memory: ProcessMemory | None) -> list[tuple[str, str]]:
    """Describe the memory of a process."""
    if memory is None:
        return []
    packed = f", {_size(memory.packed_weights)} of packed copies of them" if memory.packed_weights else ""
    text = (
        f"{_size(memory.total)} for this batch on a CPU, by formula: {_size(memory.mapped_weights)} of weights in the "
        f"file{packed}, {_size(memory.caches)} of cache, {_size(memory.buffers)} of buffers, "
        f"{_size(memory.libraries + memory.graphs)} of libraries and graphs"
    )
    return [("process", text)]


def _kind(manifest: Manifest) -> str:
    if manifest.speech is not None:
        return "speech model"
    if manifest.image is not None:
        return "image to text"
    return "decoder-only" if manifest.sizes.decoder_only else "encoder-decoder"


def _global_attention(tokens: int) -> list[tuple[str, str]]:
    what = "first token of each source has" if tokens == 1 else f"first {tokens} tokens of each source have"
    return [("encoder", f"the {what} global attention")] if tokens else []


def _layers(layers: Sequence[LayerChoice]) -> str:
    """Describe the caches of the layers; neighbours with equal caches are one entry."""
    groups = []
    for (source, generated), group in groupby(layers, key=lambda layer: (layer.source, layer.generated)):
        numbers = [layer.layer for layer in group]
        where = "all layers" if len(numbers) == len(layers) else f"layers {numbers[0]} to {numbers[-1]}"
        where = f"layer {numbers[0]}" if len(numbers) == 1 and len(layers) > 1 else where
        groups.append(f"source cache {source}, generated cache {generated} ({where})")
    return "; ".join(groups)


def _files(facts: Mapping[str, Any]) -> str:
    parts: dict[str, int] = {}
    for file, size in facts["files"].items():
        part = file.partition("/")[0]
        parts[part] = parts.get(part, 0) + size
    listed = ", ".join(f"{part} {_size(size)}" for part, size in parts.items())
    return f"{_size(facts['total_bytes'])}: {listed}"


def _check(parity: ParityReport | None) -> str:
    if parity is None:
        return "not done (--no-check): the bundle was not compared with model.generate"
    ran = f"of {counted(parity.samples, 'input')} under {counted(parity.settings, 'setting')}"
    ties = f"; rounding alone decides {counted(parity.ties, 'sequence')}" if parity.ties else ""
    own = f" ({parity.differing_float32} from float32's)" if parity.differing_float32 is not None else ""
    differing = (
        f"; {counted(parity.differing, 'sequence')}{own} differ, as this bundle is inexact" if parity.differing else ""
    )
    scores = f"scores within {parity.max_score_error:.1g}"
    return f"{counted(parity.tokens, 'token')} {ran} equal model.generate's, {scores}{ties}{differing}"


def _products(entries: Sequence[QuantizedEntry]) -> str:
    """Describe the forms of products and embeddings, and name the ones that are in neither int8 nor int4."""
    forms = ("w4a16", "int8", "w8a16", "blocks", "fp32")
    count = {form: sum(entry.kept == form for entry in entries) for form in forms}
    errors = [error for error in (getattr(entry, entry.kept) for entry in entries) if error is not None]
    text = (
        f"{count['w4a16']} of {len(entries)} products and embeddings in int4, " * bool(count["w4a16"])
        + f"{count['int8']} of {len(entries)} products and embeddings in int8, {count['w8a16']} with rows of 16 bits, "
        + f"{count['blocks']} in blocks of 128, " * bool(count["blocks"])
        + f"{count['fp32']} in float32; the largest error of one is {max(errors, default=0.0):.2%}"
    )
    named = [f"{entry.name} ({entry.kept})" for entry in entries if entry.kept not in ("int8", "w4a16")]
    return f"{text}: {', '.join(named)}" if named else text


def _fallbacks(manifest: Manifest) -> list[str]:
    return [
        f"layer {entry.layer} keeps {entry.kept} as {entry.part} cache, as {entry.wanted} was not exact enough"
        for entry in manifest.guard
        if entry.kept != entry.wanted
    ]


def _engine(bundle: Bundle, name: str) -> dict[str, Any]:
    """Return the facts of a TensorRT engine, or the error in it."""
    try:
        entry = load_engine(bundle, name, verify=False).entry
    except EngineFileError as error:
        return {"error": str(error)}
    return {
        "distribution": entry.flavour,
        "tensorrt_version": entry.tensorrt_version,
        "capabilities": list(entry.capabilities),
        "precision": entry.precision,
        "limits": entry.limits.model_dump(),
        "bytes": entry.encoder.bytes + entry.decoder.bytes,
    }


def _engines(engines: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    lines = []
    for name, engine in engines.items():
        if "error" in engine:
            lines.append((name, f"cannot be used: {engine['error']}"))
            continue
        limits = ", ".join(f"{limit} {value}" for limit, value in engine["limits"].items())
        capabilities = ", ".join(engine["capabilities"])
        lines.append(
            (
                name,
                f"{engine['distribution']} {engine['tensorrt_version']}, {engine['precision']}, compute capability "
                f"{capabilities}, {_size(engine['bytes'])}, {limits}",
            )
        )
    return lines


def _size(count: int) -> str:
    """Return a number of bytes with its unit, in two significant digits."""
    unit, value = ("kB", count / 1e3) if count < 1e6 else ("MB", count / 1e6) if count < 1e9 else ("GB", count / 1e9)
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
