"""All files of a bundle but ``bundle.json``, and the manifest that describes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tightbeam.deploy.bundle.manifest import (
    FORMAT_VERSION,
    WEIGHTS,
    AlignmentEntry,
    DivergenceEntry,
    FileEntry,
    GuardEntry,
    Manifest,
    QuantizedCacheEntry,
    QuantizedEntry,
)
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.checkpoint.config import AUDIO, IMAGES, feature_settings, longest_output
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.tokenizer import write_tokenizer
from tightbeam.export.writing.entries import (
    graph_entries,
    layer_entries,
    pass_entries,
    sizes_entry,
    state_entries,
)
from tightbeam.export.writing.graphs import write_graphs
from tightbeam.export.writing.provenance import provenance_of
from tightbeam.graph_passes import LayerPlan, ModelGraphs, PassResult, RunSize
from tightbeam.graph_passes.precision.lower_precision import itemsize

__all__ = ["write_files"]


def write_files(
    folder: Path,
    checkpoint: Checkpoint,
    graphs: ModelGraphs,
    results: Sequence[PassResult],
    plan: Sequence[LayerPlan],
    guard: Sequence[GuardEntry] = (),
    quantized: Sequence[QuantizedEntry] = (),
    divergences: Sequence[DivergenceEntry] = (),
    ggml_divergence: float | None = None,
    quantized_caches: Sequence[QuantizedCacheEntry] = (),
    cache_divergence: float | None = None,
    *,
    variant: str,
    precision: str = "fp32",
    cache_precision: str | None = None,
    generated_cache_precision: str | None = None,
    weight_threshold: float = 0.0,
    alignment: AlignmentEntry | None = None,
) -> Manifest:
    """Write a variant's files, all but ``bundle.json``.

    Parameters
    ----------
    folder
        An empty folder.
    checkpoint
        The source of the tokenizer, of the generation settings, and of a speech model's feature settings.
    graphs
        The rewritten graphs, in ``precision``.
    results
        Reports of the passes that made ``graphs``.
    plan
        Kinds of cache of the L decoder layers.
    guard
        Results of the guard, one for each cache that is not keys and values.
    quantized
        Results of the guard, one for each product and embedding that int8 may quantise.
    divergences
        How the forms of these were chosen.
    ggml_divergence
        Divergence of Q8_0, or Q4_0 in int4, on the same inputs; None if it was not measured.
    quantized_caches
        The same, one for each cache in int8.
    cache_divergence
        Divergence of float32 with these caches in int8; None without them.
    variant
        The bundle's name for ``plan``.
    precision
        "fp32", "fp16" or "int8".
    cache_precision
        "int8" for a source cache of integers; else None.
    generated_cache_precision
        The same for the generated cache.
    weight_threshold
        Attention probability below which source positions are skipped; 0 skips none.
    alignment
        The heads that align tokens with the source; None without them.

    Returns
    -------
    Manifest
        The description of the files, without the comparison with torch and the error of ``precision``.

    Raises
    ------
    ExportError
        The checkpoint's tokenizer fails on a text.
    OSError
        A file cannot be written.
    """
    longest = longest_output(checkpoint.generation_config, graphs.sizes.max_target)
    run = RunSize(
        N=graphs.sizes.max_source,
        T=longest,
        itemsize=itemsize(precision),
        quantized_source=cache_precision is not None,
        quantized_generated=generated_cache_precision is not None,
    )
    write_graphs(graphs, folder)
    entries = graph_entries(graphs, folder)
    return Manifest(
        format_version=FORMAT_VERSION,
        made_by=f"tightbeam {version('tightbeam')}",
        model=checkpoint.name,
        family=checkpoint.family.model_type,
        variant=variant,
        precision=precision,  # type: ignore[arg-type]  # one of PRECISIONS
        cache_precision=cache_precision,  # type: ignore[arg-type]  # "int8" or None
        generated_cache_precision=generated_cache_precision,  # type: ignore[arg-type]  # likewise
        sizes=sizes_entry(graphs.sizes),
        layers=layer_entries(plan),
        guard=tuple(guard),
        quantized=tuple(quantized),
        divergences=tuple(divergences),
        ggml_divergence=ggml_divergence,
        quantized_caches=tuple(quantized_caches),
        cache_divergence=cache_divergence,
        weight_threshold=weight_threshold,
        global_tokens=checkpoint.family.global_tokens,
        short_audio=checkpoint.family.short_audio,
        passes=pass_entries(results, run),
        encoder=entries["encoder"],
        decoder=entries["decoder"],
        prompt=entries.get("prompt"),
        prefill=entries.get("prefill"),
        cache_states=state_entries(graphs),
        weights=file_entry(folder, WEIGHTS),
        tokenizer=write_tokenizer(checkpoint.tokenizer, folder),
        speech=_copied_settings(checkpoint, checkpoint.family.feature_config, AUDIO, folder),
        convolutions=checkpoint.family.convolutions(checkpoint.config),
        image=_copied_settings(checkpoint, checkpoint.family.image_config, IMAGES, folder),
        alignment=alignment,
        generation=checkpoint.generation_config,
        parity=None,
        provenance=provenance_of(checkpoint),
    )


def _copied_settings(checkpoint: Checkpoint, name: str | None, part: str, folder: Path) -> FileEntry | None:
    """Write a checkpoint's settings of features or images as the file ``name`` of a bundle's folder, and describe it.

    ``part`` is their name in the file of the processor. None if the family has no such settings.
    """
    if name is None:
        return None
    _, settings = feature_settings(checkpoint.path, name, part)
    (folder / name).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return file_entry(folder, name)
