"""Checkpoint -> bundle: load, trace once, rewrite to a variant, write, compare with torch."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from tightbeam.deploy.bundle import (
    FORMAT_VERSION,
    MANIFEST,
    WEIGHTS,
    Bundle,
    CacheStateEntry,
    GraphEntry,
    LayerChoice,
    Manifest,
    ModelSizes,
    PassEntry,
    check_target,
    file_entry,
    write_bundle,
)
from tightbeam.export.checkpoint import Checkpoint, checkpoint_name, load_checkpoint
from tightbeam.export.errors import ExportError
from tightbeam.export.graph_files import tensor_entries, write_graphs
from tightbeam.export.memory_table import BEAMS, longest_output
from tightbeam.export.parity import Reference, compare, make_reference
from tightbeam.export.speech_files import check_speech, write_speech
from tightbeam.export.tokenizer_files import write_tokenizer
from tightbeam.export.tracing import trace
from tightbeam.graph_passes import PRESETS, Job, LayerPlan, ModelGraphs, PassResult, rewrite, same_for_all

__all__ = ["PRECISIONS", "STEPS", "export_model"]

PRECISIONS = ("fp32",)
STEPS = ("loading", "generating with torch", "tracing", "rewriting", "writing", "comparing with torch")


def export_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    variant: str = "el",
    precision: str = "fp32",
    max_new_tokens: int | None = None,
    check: bool = True,
    force: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> Bundle:
    """Export a checkpoint as a bundle.

    ``model``: a bare alias (``bart-large-cnn``, ``demo``), a hub id, or a folder. ``output``: the bundle folder, by
    default ``<model>-<variant>`` in the current folder. ``variant``: a name of ``graph_passes.PRESETS``.
    ``max_new_tokens``: becomes the bundle's default in place of the checkpoint's. ``check``: generate with torch and
    with the bundle, and fail where a token differs. ``force``: replace an existing bundle. ``on_step`` is called with
    each of ``STEPS`` as it begins.

    Raises ExportError for a checkpoint or an option, PassError for a graph that cannot be rewritten, BundleError for
    an output that cannot be written. After an error there is no bundle, and an existing one is as it was.
    """
    _check_options(variant, precision, max_new_tokens)
    target = Path(output) if output is not None else Path(f"{checkpoint_name(model)}-{variant}")
    check_target(target, force=force)

    on_step(STEPS[0])
    checkpoint = load_checkpoint(model)
    check_speech(checkpoint)
    if max_new_tokens is not None:
        _set_max_new_tokens(checkpoint, max_new_tokens)
    reference = None
    if check:
        on_step(STEPS[1])
        reference = make_reference(checkpoint)
    on_step(STEPS[2])
    canonical = trace(checkpoint)
    on_step(STEPS[3])
    plan = same_for_all(PRESETS[variant], canonical.sizes.L, f"preset {variant}")
    graphs, results = rewrite(canonical, plan)
    on_step(STEPS[4])
    work = [(checkpoint, graphs, results, plan)]
    del checkpoint, canonical, graphs, results  # `fill` frees the model before the bundle is loaded beside it

    def fill(folder: Path) -> Manifest:
        manifest = write_files(folder, *work.pop(), variant=variant)
        gc.collect()
        if reference is None:
            return manifest
        on_step(STEPS[5])
        return _checked(folder, manifest, reference)

    return write_bundle(target, fill, force=force)


def _check_options(variant: str, precision: str, max_new_tokens: int | None) -> None:
    if variant not in PRESETS:
        raise ExportError(f"variant {variant!r} is unknown; expected one of {', '.join(PRESETS)}")
    if precision not in PRECISIONS:
        raise ExportError(f"precision {precision!r} is not supported; expected {', '.join(PRECISIONS)}")
    if max_new_tokens is not None and max_new_tokens < 1:
        raise ExportError(f"max_new_tokens={max_new_tokens} leaves nothing to generate; expected 1 or more")


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
    *,
    variant: str,
) -> Manifest:
    """Write a variant's files into ``folder``, all but ``bundle.json``, and describe them."""
    longest = longest_output(checkpoint.generation_config, graphs.sizes.max_target)
    job = Job(B=1, M=BEAMS, N=graphs.sizes.max_source, T=longest)
    write_graphs(graphs, folder)
    entries = {
        name: GraphEntry(
            **file_entry(folder, f"{name}.onnx").model_dump(),
            inputs=tensor_entries(graph.inputs),
            outputs=tensor_entries(graph.outputs),
        )
        for name, graph in (("encoder", graphs.encoder), ("decoder", graphs.decoder))
    }
    return Manifest(
        format_version=FORMAT_VERSION,
        made_by=f"tightbeam {version('tightbeam')}",
        model=checkpoint.name,
        family=checkpoint.family.model_type,
        variant=variant,
        precision="fp32",
        sizes=ModelSizes(**vars(graphs.sizes)),
        layers=tuple(
            LayerChoice(layer=layer, source=choice.source, generated=choice.generated, reason=choice.reason)
            for layer, choice in enumerate(plan)
        ),
        passes=tuple(
            PassEntry(
                name=result.name, matched=result.matched, reason=result.reason, bytes_saved=result.bytes_saved(job)
            )
            for result in results
        ),
        encoder=entries["encoder"],
        decoder=entries["decoder"],
        cache_states=tuple(CacheStateEntry.model_validate(vars(state)) for state in graphs.states),
        weights=file_entry(folder, WEIGHTS),
        tokenizer=write_tokenizer(checkpoint, folder),
        speech=write_speech(checkpoint, folder),
        generation=checkpoint.generation_config,
        parity=None,
    )


def _checked(folder: Path, manifest: Manifest, reference: Reference) -> Manifest:
    """The manifest with the report of the comparison; the draft lets the runner load the folder before that."""
    draft = folder / MANIFEST
    draft.write_text(manifest.model_dump_json(), encoding="utf-8")
    return manifest.model_copy(update={"parity": compare(folder, manifest, reference)})
