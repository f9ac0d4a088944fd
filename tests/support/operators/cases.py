"""Every operator's cases, and the check of BeamTopK's candidates. Needs no runtime."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from support.tolerance import assert_close
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Array, Case

MODULES: dict[str, ModuleType] = {
    name: importlib.import_module(f"tightbeam.plugins.ops.{folder}.cases")
    for name, folder in (
        ("NGramBlock", "ngram_block"),
        ("BeamAttention", "beam_attention"),
        ("BeamLatentAttention", "beam_latent_attention"),
        ("SourceAttention", "source_attention"),
        ("LatentAttention", "latent_attention"),
        ("BeamTopK", "beam_top_k"),
        ("EncoderAttention", "encoder_attention"),
        ("PromptAttention", "prompt_attention"),
        ("NormalizeRows", "normalize_rows"),
        ("QuantizeRows", "quantize_rows"),
        ("QuantizedMatMul", "quantized_matmul"),
        ("DynamicQuantizeMatMul", "dynamic_quantize_matmul"),
        ("HeadMatMul", "head_matmul"),
        ("SplitRowsMatMul", "split_rows_matmul"),
        ("SplitRowsHeadMatMul", "split_rows_head_matmul"),
        ("Int4MatMul", "int4_matmul"),
        ("QuantizedSourceAttention", "quantized_source_attention"),
        ("QuantizedLatentAttention", "quantized_latent_attention"),
        ("QuantizedBeamAttention", "quantized_beam_attention"),
        ("Linear", "linear"),
        ("TiledGather", "tiled_gather"),
        ("QuantizedGather", "quantized_gather"),
        ("Int4Gather", "int4_gather"),
        ("ScreenedLinear", "screened_linear"),
        ("ScreenedQuantizedMatMul", "screened_quantized_matmul"),
        ("QuantizedBeamTopK", "quantized_beam_top_k"),
    )
}
"""Operator -> the module of its cases and of its definition in numpy."""
GPU_MODULES = {name: module for name, module in MODULES.items() if OPERATORS[name].gpu}
"""The same of the operators with kernels for a GPU."""
FOLDERS = {name: module.__name__.split(".")[-2] for name, module in MODULES.items()}
"""Operator -> its folder in ``plugins/ops``."""


def wide_cases() -> dict[str, list[Case]]:
    """Attention with widths beyond one pack a lane, one slice of a row and 64 columns a warp, and more queries than one
    tile has."""
    source, latent = MODULES["SourceAttention"].random_case, MODULES["LatentAttention"].random_case
    beam, beam_latent = MODULES["BeamAttention"].random_case, MODULES["BeamLatentAttention"].random_case
    return {
        "SourceAttention": [
            source(20, B=1, M=1, H=2, G=1, K=300, V=530, N=9),
            source(21, B=1, M=5, H=8, G=1, K=128, V=72, N=40),
            source(22, B=1, M=2, H=12, G=1, K=48, V=96, N=21, spread=20.0),
        ],
        "LatentAttention": [
            latent(20, B=1, M=2, H=2, G=1, K=1040, N=18),
            latent(21, B=1, M=3, H=12, G=12, K=24, N=40),
            latent(22, B=1, M=1, H=2, G=1, K=2100, N=5),
            latent(23, B=1, M=2, H=4, G=4, K=64, N=40, rotary=64),
            latent(24, B=1, M=2, H=4, G=2, K=48, N=20, rotary=16),
            latent(25, B=2, M=3, H=7, G=1, K=72, N=75, scaled=True),
            latent(26, B=1, M=3, H=12, G=2, K=128, N=37, rotary=128),
        ],
        "BeamAttention": [
            beam(20, B=1, M=2, H=2, G=1, K=260, V=530, T=9, T_max=9, rotary=16),
            beam(21, B=1, M=3, H=5, G=1, K=64, V=72, T=12, T_max=12, rotary=64, prefix=True),
            beam(22, B=1, M=20, H=3, G=3, K=16, V=24, T=140, T_max=141, bias=True, lengths=[140]),
            beam(23, B=1, M=33, H=1, G=1, K=8, V=8, T=5, T_max=5),
        ],
        "BeamLatentAttention": [
            beam_latent(20, B=1, M=2, H=2, G=1, K=1040, T=18, T_max=18, rotary=32),
            beam_latent(21, B=1, M=2, H=20, G=20, K=8, T=20, T_max=20, bias=True),
            beam_latent(22, B=1, M=2, H=4, G=4, K=64, T=40, T_max=40, rotary=64, shifted=True),
            beam_latent(23, B=1, M=2, H=4, G=2, K=48, T=20, T_max=20, rotary=16, prefix=True),
            beam_latent(24, B=1, M=1, H=2, G=1, K=2100, T=5, T_max=5),
            beam_latent(25, B=1, M=2, H=18, G=2, K=40, T=70, T_max=71, prefix=True, scaled=True, window=66),
        ],
    }


def with_inputs(case: Case, **inputs: Any) -> Case:
    """The case with other values of some inputs; None leaves an optional one out."""
    changed = {**case.inputs, **inputs}
    return replace(case, inputs={name: np.asarray(value) for name, value in changed.items() if value is not None})


ATTENTION_SIZES: dict[str, Any] = {"B": 2, "M": 3, "H": 4, "G": 2, "K": 16}
HISTORY_SIZES: dict[str, Any] = {**ATTENTION_SIZES, "T": 40, "T_max": 41, "lengths": [40, 7]}
ATTENTION_CASES: dict[str, Case] = {
    "SourceAttention": MODULES["SourceAttention"].random_case(40, **ATTENTION_SIZES, V=8, N=300),
    "LatentAttention": MODULES["LatentAttention"].random_case(40, **ATTENTION_SIZES, N=300),
    "BeamAttention": MODULES["BeamAttention"].random_case(40, **HISTORY_SIZES, V=8, prefix=True),
    "BeamLatentAttention": MODULES["BeamLatentAttention"].random_case(40, **HISTORY_SIZES, prefix=True),
}
"""One case of each attention operator, of 6 rows and 4 heads."""


def with_nan_query(case: Case) -> Case:
    """The case with NaN for the query of row 0 and head 0."""
    name = "projected" if "projected" in case.inputs else "query"
    query = case.inputs[name].copy()
    query.reshape(-1)[:16] = np.nan
    return with_inputs(case, **{name: query})


def outputs_of(name: str, case: Case) -> tuple[str, ...]:
    """Outputs that a node with the case's inputs can have: a cache is an output only where it is an input, and logits
    only where they are asked for."""
    caches = {f"{tensor}_out" for tensor in case.inputs}
    names = tuple(tensor for tensor in OPERATORS[name].output_names if not tensor.endswith("_out") or tensor in caches)
    asked = name != "QuantizedBeamTopK" or np.all(case.inputs.get("all_logits"))
    return names if asked else tuple(tensor for tensor in names if tensor != "logits")


def check_candidates(
    case: Case, found: dict[str, Array], exact: dict[str, Array], naive: dict[str, Array], luck: float = 1
) -> None:
    """Assert that the scores are right, that each candidate has its score, that none occurs twice, and that equal ones
    are in order."""
    B, C = found["scores"].shape
    M = case.inputs["beam_scores"].shape[1]
    finite = np.isfinite(exact["scores"])
    np.testing.assert_array_equal(np.isfinite(found["scores"]), finite)
    if finite.any():
        assert_close(found["scores"][finite], exact["scores"][finite], naive["scores"][finite], luck)
    rows = np.arange(B)[:, None] * M + found["beams"]
    worth, naive_worth = (result["total"][rows, found["tokens"]] for result in (exact, naive))
    np.testing.assert_array_equal(np.isfinite(worth), finite)
    if finite.any():
        assert_close(found["scores"][finite], worth[finite], naive_worth[finite], luck)
    for b in range(B):
        assert len(set(zip(found["beams"][b], found["tokens"][b], strict=True))) == C
        same = found["scores"][b, 1:] == found["scores"][b, :-1]
        assert (found["beams"][b, 1:] >= found["beams"][b, :-1])[same].all(), "of equal scores the lower beam is first"
