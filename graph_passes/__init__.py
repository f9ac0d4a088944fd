"""Rewrites of ONNX graphs, one pass a file: canonical graphs -> the graphs of a variant (see ``pipeline``)."""

from tightbeam.graph_passes.caches.kinds import (
    GENERATED,
    PRESETS,
    SOURCE,
    KeyForm,
    LayerPlan,
    Preset,
    needs_guard,
    plan_bytes,
    presets_of,
    same_for_all,
    why_not,
)
from tightbeam.graph_passes.model import CacheState, ModelGraphs, Pass, PassError, PassResult, RunSize, Sizes
from tightbeam.graph_passes.pipeline import passes_of, rewrite, tensorrt_form, to_precision
from tightbeam.graph_passes.precision.quantize_generated import QUANTIZED_GENERATED
from tightbeam.graph_passes.precision.quantize_source import QUANTIZED_KINDS
from tightbeam.graph_passes.precision.skip_small_weights import skip_small_weights

__all__ = [
    "GENERATED",
    "PRESETS",
    "QUANTIZED_GENERATED",
    "QUANTIZED_KINDS",
    "SOURCE",
    "CacheState",
    "KeyForm",
    "LayerPlan",
    "ModelGraphs",
    "Pass",
    "PassError",
    "PassResult",
    "Preset",
    "RunSize",
    "Sizes",
    "needs_guard",
    "passes_of",
    "plan_bytes",
    "presets_of",
    "rewrite",
    "same_for_all",
    "skip_small_weights",
    "tensorrt_form",
    "to_precision",
    "why_not",
]
