"""The order of passes, from canonical graphs to those of a bundle or of a TensorRT engine.

    tracing             fold_scales (Whisper), canonicalise_encoder_decoder [canonicalise_two_stream]
                        or canonicalise_decoder_only
    move_key_scales     for int8 caches of keys, with scales that the export chooses on real queries and keys
    rewrite             tie_embeddings, fold_biases
                        key_forms (layers whose keys the guard gives another form)
                        alignment_outputs (Whisper with alignment heads)
                        a pass for each kind of source cache, or of prompt cache in a decoder-only model
                        a pass for each kind of generated cache
                        prompt_outputs (decoder-only)
                        search_head, step_rows, fold_residuals
    skip_small_weights  if asked for: not exact
    move_scales         for int8 and int4, with scales that the export chooses on real rows
    to_precision        split_inverses and lower_precision for half precision; else encoder_attention,
                        prompt_attention, quantize and normalize_rows for int8 and int4, linear, flat_rows,
                        quantize_generated and quantize_source for int8 caches, prompt_parts without the latter,
                        prefill, screen_head if asked for, else search_logits for int8 and int4: half precision
                        and integers are not exact
    tensorrt_form       standard_operators, drop_alignment, decompose_attention, fixed_capacity, split_inverses and
                        lower_precision; then, on the written messages, to_plugin_nodes

Every pass has the signature ``pass_(graphs, ...) -> PassResult``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tightbeam.graph_passes.caches.kinds import GENERATED, SOURCE, KeyForm, LayerPlan, require_kinds
from tightbeam.graph_passes.cleanup.alignment_outputs import alignment_outputs
from tightbeam.graph_passes.cleanup.encoder_attention import encoder_attention
from tightbeam.graph_passes.cleanup.flat_rows import flat_rows
from tightbeam.graph_passes.cleanup.fold_biases import fold_biases
from tightbeam.graph_passes.cleanup.fold_residuals import fold_residuals
from tightbeam.graph_passes.cleanup.key_forms import key_forms
from tightbeam.graph_passes.cleanup.prefill import prefill
from tightbeam.graph_passes.cleanup.prompt_attention import prompt_attention
from tightbeam.graph_passes.cleanup.prompt_outputs import prompt_outputs
from tightbeam.graph_passes.cleanup.prompt_parts import prompt_parts
from tightbeam.graph_passes.cleanup.search_head import search_head
from tightbeam.graph_passes.cleanup.step_rows import step_rows
from tightbeam.graph_passes.cleanup.tie_embeddings import tie_embeddings
from tightbeam.graph_passes.model import Array, ModelGraphs, Pass, PassError, PassResult
from tightbeam.graph_passes.precision.int4 import Int4Matrix
from tightbeam.graph_passes.precision.integers import Made
from tightbeam.graph_passes.precision.linear import linear
from tightbeam.graph_passes.precision.lower_precision import INTEGERS, lower_precision
from tightbeam.graph_passes.precision.normalize_rows import normalize_rows
from tightbeam.graph_passes.precision.quantize import NO_FORMS, NO_INT4, quantize
from tightbeam.graph_passes.precision.quantize_generated import quantize_generated
from tightbeam.graph_passes.precision.quantize_source import quantize_source
from tightbeam.graph_passes.precision.screen_head import screen_head
from tightbeam.graph_passes.precision.search_logits import search_logits
from tightbeam.graph_passes.precision.split_inverses import split_inverses
from tightbeam.graph_passes.tensorrt.decompose_attention import decompose_attention
from tightbeam.graph_passes.tensorrt.drop_alignment import drop_alignment
from tightbeam.graph_passes.tensorrt.fixed_capacity import fixed_capacity
from tightbeam.graph_passes.tensorrt.standard_operators import standard_operators

__all__ = ["passes_of", "rewrite", "tensorrt_form", "to_precision"]

BEFORE_CACHES: tuple[Pass, ...] = (tie_embeddings, fold_biases)
ALIGNMENT: tuple[Pass, ...] = (alignment_outputs,)
"""Run after ``BEFORE_CACHES`` for a model with alignment heads."""
AFTER_PROMPT_CACHES: tuple[Pass, ...] = (prompt_outputs,)
"""For a model with one softmax over source and output."""
AFTER_CACHES: tuple[Pass, ...] = (search_head, step_rows, fold_residuals)


def passes_of(plan: Sequence[LayerPlan], *, one_softmax: bool = False, aligned: bool = False) -> list[Pass]:
    """Passes that make a plan's graphs of the canonical ones, in order.

    Parameters
    ----------
    plan
        Kinds of cache of each of L layers.
    one_softmax
        One softmax covers source and output, as in a model without an encoder, whose source is its prompt.
    aligned
        The model has alignment heads.

    Raises
    ------
    PassError
        For an unknown kind of cache, and for two that do not go together.
    """
    require_kinds(plan, one_softmax=one_softmax)
    caches: list[Pass] = []
    for name, kind in SOURCE.items():
        if layers := [index for index, layer in enumerate(plan) if layer.source == name]:
            caches.append(partial(kind.layer_pass(one_softmax=one_softmax), layers=layers))
    for name, own in GENERATED.items():
        if layers := [index for index, layer in enumerate(plan) if layer.generated == name]:
            caches.append(partial(own.self_pass, layers=layers))
    source = {index: layer.source_keys for index, layer in enumerate(plan) if layer.source_keys != KeyForm()}
    own_keys = {index: layer.generated_keys for index, layer in enumerate(plan) if layer.generated_keys != KeyForm()}
    keys: list[Pass] = [partial(key_forms, source=source, generated=own_keys)] if source or own_keys else []
    before = (*BEFORE_CACHES, *keys, *(ALIGNMENT if aligned else ()))
    return [*before, *caches, *(AFTER_PROMPT_CACHES if one_softmax else ()), *AFTER_CACHES]


def rewrite(canonical: ModelGraphs, plan: Sequence[LayerPlan]) -> tuple[ModelGraphs, list[PassResult]]:
    """Rewrite canonical graphs to those of a plan.

    Parameters
    ----------
    canonical
        Traced graphs; they stay as they are, and share their weights with the result.
    plan
        Kinds of cache of each of the model's L layers.

    Returns
    -------
    tuple
        The plan's graphs, and the report of each pass in order.

    Raises
    ------
    PassError
        For a plan that the model cannot have, and for a graph that a pass cannot rewrite; the message names the pass
        and the passes before it.
    """
    if len(plan) != canonical.sizes.L:
        raise PassError(f"the plan is for {len(plan)} layers, the model has {canonical.sizes.L}")
    passes = passes_of(plan, one_softmax=canonical.sizes.one_softmax, aligned=bool(canonical.alignment_heads))
    return _run(passes, canonical)


def to_precision(
    graphs: ModelGraphs,
    precision: str,
    forms: Mapping[str, str] = NO_FORMS,
    int4: Mapping[str, Int4Matrix] = NO_INT4,
    *,
    cache_precision: str | None = None,
    generated_cache_precision: str | None = None,
    screened: bool = False,
    directions: Array | None = None,
    made: Made | None = None,
) -> tuple[ModelGraphs, list[PassResult]]:
    """Copy of a variant's graphs in a precision; in float32, int8 and int4 with the operators of CPUs.

    Parameters
    ----------
    graphs
        A variant's graphs in float32.
    precision
        "fp32", "fp16", "bf16", "int8" or "int4".
    forms, int4
        Forms of single products in int8 and int4, and the matrices of those with 4 bits (``quantize``).
    cache_precision
        "int8" for a source cache in int8, with all but "fp16" and "bf16".
    generated_cache_precision
        The same for the generated cache.
    screened
        Screen the logits of greedy steps, with "fp32" and "int8".
    directions
        Orthonormal columns float32 [X, K] along which logits in int8 are estimated.
    made
        Quantised matrices that the copies of these graphs share. Those that it lacks are added.

    Raises
    ------
    PassError
        For a weight beyond the range of the precision, a cache that cannot be int8, and logits that cannot be
        screened.
    """
    if precision not in ("fp32", *INTEGERS):
        return _run(_precision_passes(precision), graphs)
    integers: list[Pass] = (
        [partial(quantize, forms=forms, int4=int4, made=made), normalize_rows] if precision in INTEGERS else []
    )
    passes: list[Pass] = [encoder_attention, prompt_attention, *integers, linear, flat_rows]
    head: list[Pass] = [search_logits] if precision in INTEGERS else []
    if screened:
        head = [partial(screen_head, directions=directions)]
    caches: list[Pass] = [quantize_generated] if generated_cache_precision is not None else []
    caches.append(prompt_parts if cache_precision is None else quantize_source)
    return _run([*passes, *caches, prefill, *head], graphs)


def tensorrt_form(graphs: ModelGraphs, capacity: int, precision: str) -> tuple[ModelGraphs, list[PassResult]]:
    """Copy of a variant's graphs as TensorRT takes them.

    ONNX Runtime runs these graphs too; ``to_plugin_nodes`` later makes plugins of the operators of ``plugins/``.

    Parameters
    ----------
    graphs
        A variant's graphs in float32.
    capacity
        Positions of the caches of the generated part.
    precision
        "fp32", "fp16" or "bf16".

    Returns
    -------
    tuple
        The new graphs, and the report of each pass in order.

    Raises
    ------
    PassError
        For a graph that a pass cannot rewrite, and for a weight beyond the range of the precision.
    """
    first: list[Pass] = [
        standard_operators,
        drop_alignment,
        decompose_attention,
        partial(fixed_capacity, capacity=capacity),
    ]
    return _run([*first, *_precision_passes(precision)], graphs)


def _precision_passes(precision: str) -> list[Pass]:
    if precision == "fp32":
        return []
    return [partial(split_inverses, precision=precision), partial(lower_precision, precision=precision)]


def _run(passes: Iterable[Pass], graphs: ModelGraphs) -> tuple[ModelGraphs, list[PassResult]]:
    """Run passes over a copy of ``graphs``."""
    graphs = graphs.copy()
    results: list[PassResult] = []
    for apply in passes:
        try:
            results.append(apply(graphs))
        except PassError as error:
            before = ", ".join(result.name for result in results) or "none"
            raise PassError(f"{error} (passes before: {before})") from error
    return graphs, results
