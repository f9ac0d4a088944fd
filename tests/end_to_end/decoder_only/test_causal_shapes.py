"""Decoder-only models of odd shapes, and those whose values are recovered from rotated keys.

Each is a trace, which takes seconds; those that repeat what other models have are run by ``make slow``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.references.causal_runs import SETTINGS, prompts, runs
from support.references.expected import expect_equal
from support.slow_cases import slow_unless
from tightbeam.deploy import GenerationError, Runner
from tightbeam.deploy.bundle.writer import write_bundle
from tightbeam.export.writing.bundle_files import write_files
from tightbeam.graph_passes import LayerPlan, RunSize, plan_bytes, rewrite

Shape = tuple[str, dict[str, Any]]
LONGROPE = {
    **{"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 28},
    **{"short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5], "long_factor": [9.0] * 6},
}
SHAPES: tuple[Shape, ...] = (
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu", "n_inner": None}),
    ("gpt2", {"tie_word_embeddings": False, "n_head": 1, "n_layer": 1}),
    ("gpt_bigcode", {"multi_query": True, "n_head": 1, "n_layer": 1}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "num_hidden_layers": 1}),  # 40B
    ("falcon", {"multi_query": False, "parallel_attn": False, "tie_word_embeddings": False, "num_hidden_layers": 1}),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0}, "num_hidden_layers": 1}),
    ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 28, "num_hidden_layers": 1}),
)
LLAMA_3 = {
    **{"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 16},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
REPEATED: tuple[Shape, ...] = (
    # Another scale, which is a number in the graph.
    ("gpt2", {"scale_attn_weights": False, "n_embd": 24, "n_head": 4, "n_layer": 1}),
    # As 11B: the projection of 40B, and the single norm of 7B.
    (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "num_hidden_layers": 1},
    ),
    # Other angles, which are tables in the graph, as YaRN's are.
    ("llama", {"rope_parameters": LLAMA_3, "num_hidden_layers": 1}),
    ("qwen2", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.0}, "num_hidden_layers": 1}),
    # Biases as Qwen 2's, a key head for each query head as OLMo's, and a single one as Gemma's.
    ("llama", {"num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 10, "hidden_act": "gelu", "num_hidden_layers": 1}),
    # As RW: BLOOM's biases, but rounded to bfloat16.
    ("falcon", {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    # GPT-2 with the fused product of BLOOM.
    ("gpt_bigcode", {"multi_query": False}),
    # Angles that are Llama's up to the length of the config.
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 2.0}, "num_hidden_layers": 1}),
    # Another window, and none, which is Llama.
    ("mistral", {"sliding_window": 2}),
    ("mistral", {"sliding_window": None, "num_hidden_layers": 1}),
    # As the 1.2B: without windows all layers are rotated.
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
)
QUICK = (SHAPES[6],)


@pytest.mark.parametrize(("family", "shape"), slow_unless((*SHAPES, *REPEATED), lambda *case: case in QUICK))
def test_odd_shapes(bundles: BundleCache, family: str, shape: dict[str, Any]) -> None:
    model = bundles.trace(family, seed=9, **shape)[0].model
    by_head = family == "gpt2" or (family == "gpt_bigcode" and (shape.get("n_head") == 1 or not shape["multi_query"]))
    others = ("dedup", "el", "baseline") if "alibi" in shape else ("dedup",)
    for variant in ("el", "kcache", "xcache") if by_head else others:
        runner = Runner.load(bundles(variant, family, seed=9, **shape), threads=1)
        expect_equal(runner, model, runs(SETTINGS[1:2] + SETTINGS[3:]))


def test_a_bundle_ends_where_longrope_changes_its_angles(bundles: BundleCache) -> None:
    """Beyond it transformers computes all keys again, with other angles."""
    shape = next(shape for family, shape in SHAPES if family == "phi3")
    runner = Runner.load(bundles("dedup", "phi3", seed=9, **shape), threads=1)
    ids, mask = prompts((9,), 0)
    assert runner.generate(ids, mask, max_new_tokens=19, min_new_tokens=19).sequences.shape[1] == 28
    with pytest.raises(GenerationError, match=r"makes sequences of 29 tokens, .* 28 positions; pass max_new_tokens=19"):
        runner.generate(ids, mask, max_new_tokens=20)


@pytest.mark.parametrize(
    ("family", "shape", "source", "generated"),
    [
        pytest.param("gpt_neox", {}, "kv", "k", marks=pytest.mark.slow),
        pytest.param("olmo", {}, "kv", "k", marks=pytest.mark.slow),
        ("falcon", {"multi_query": False, "tokenizer": True}, "k", "k"),  # test_causal_text.py's
        pytest.param("smollm3", {"num_key_value_heads": 6}, "k", "k", marks=pytest.mark.slow),
        ("olmo2", {"num_key_value_heads": 6, "num_hidden_layers": 1}, "k", "k"),
        pytest.param("mistral", {"num_key_value_heads": 6, "num_hidden_layers": 1}, "k", "k", marks=pytest.mark.slow),
        pytest.param("qwen2", {"num_key_value_heads": 6, "num_hidden_layers": 1}, "k", "k", marks=pytest.mark.slow),
        pytest.param("qwen3", {"head_dim": 20, "num_hidden_layers": 1}, "k", "k", marks=pytest.mark.slow),  # as OLMo 2
    ],
)
def test_values_are_recovered_from_rotated_keys(
    bundles: BundleCache, tmp_path: Path, family: str, shape: dict[str, Any], source: str, generated: str
) -> None:
    """Keys are cached before their rotation and rotated when read.

    SmolLM3 rotates the keys of some layers alone, Mistral has a window, Qwen2 a bias that is rotated with its keys, and
    OLMo 2 and Qwen3 a norm before the rotation.
    """
    checkpoint, canonical = bundles.trace(family, **shape)
    plan = [LayerPlan(source, generated, "")] * canonical.sizes.L
    graphs, results = rewrite(canonical, plan)
    fill = partial(write_files, checkpoint=checkpoint, graphs=graphs, results=results, plan=plan, variant="keys")
    runner = Runner.load(write_bundle(tmp_path / "out", fill).path, threads=1)
    expect_equal(runner, checkpoint.model, runs(SETTINGS[1:]))
    runner.generate(*prompts((9, 3), 0), num_beams=3, max_new_tokens=7, min_new_tokens=7)
    assert runner.cache_bytes == plan_bytes(plan, canonical.sizes, RunSize(B=2, M=3, N=8, T=7))
