"""Decoder-only models from a checkpoint to text: the export's comparison, lines in and out, old checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.falcon.modeling_falcon import FalconAttention

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json
from support.checkpoints.families import SENTENCES, CheckpointCache
from support.inputs import run_lines
from support.slow_cases import slow_unless
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.inputs.lines import LineFormat
from tightbeam.export import ExportError, export_model
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.graph_passes import PassError

TEXT = {"tokenizer": True}


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup", "gpt2", **TEXT), threads=1)


@pytest.mark.parametrize(
    ("family", "variant"), slow_unless([("gpt2", "el"), ("llama", "dedup")], lambda family, _: family == "gpt2")
)
def test_an_export_ends_with_a_comparison(
    checkpoints: CheckpointCache, tmp_path: Path, family: str, variant: str
) -> None:
    bundle = export_model(checkpoints(family, **TEXT), tmp_path / "out", variant=variant, max_new_tokens=9)
    parity = bundle.manifest.parity
    assert parity is not None
    assert parity.tokens > 50
    assert bundle.manifest.sizes.decoder_only
    assert bundle.manifest.sizes.rotary == (family == "llama")
    assert Bundle.load(tmp_path / "out").manifest == bundle.manifest
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tightbeam.deploy.commands.run_model",
            str(bundle.path),
            "-",
            "--json",
            "--num-beams",
            "2",
        ],
        input=f"{SENTENCES[0]}\n".encode(),
        capture_output=True,
        check=True,
    )
    record = json.loads(done.stdout)
    runner = Runner.load(bundle.path, threads=1)
    ids = runner.encode(SENTENCES[0])[0]
    whole = runner.generate([ids], num_beams=2).sequences[0].tolist()
    assert whole[: len(ids)] == ids
    assert record["tokens"] == whole[len(ids) :]
    assert record["text"] == runner.decode(whole[len(ids) :]) == runner.generate_text([SENTENCES[0]], num_beams=2)[0]


@pytest.mark.slow
def test_guard_measures_attention_outside_the_interface(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """The measurement does not change the model."""
    folder = checkpoints("falcon", multi_query=False, **TEXT)
    bundle = export_model(folder, tmp_path / "out", variant="dedup", generated_cache="k", max_new_tokens=5)
    assert [layer.generated for layer in bundle.manifest.layers] == ["k", "k"]
    assert len(bundle.manifest.guard) == 2
    assert all(found.error <= found.allowed for found in bundle.manifest.guard)
    checkpoint = load_checkpoint(folder)
    names = list(checkpoint.model.state_dict())
    with checkpoint.family.attention_interface(checkpoint.model):
        assert list(checkpoint.model.state_dict()) != names
    assert list(checkpoint.model.state_dict()) == names
    assert FalconAttention.forward.__module__ == FalconAttention.__module__


@pytest.mark.parametrize(
    ("family", "choice", "reason"),
    [
        (
            "llama",
            {"variant": "el"},
            r"^variant el cannot be used with rotary positions \(RoPE\).*; use --variant dedup",
        ),
        (
            "llama",
            {"variant": "dedup", "generated_cache": "x"},
            "source cache kv and generated cache x do not go together",
        ),
        ("llama", {"variant": "kcache"}, "variant kcache cannot be used with keys of 12 numbers in a model 36 wide"),
        ("gpt_bigcode", {"variant": "slim"}, "variant slim cannot be used with keys of 12 numbers in a model 36 wide"),
        ("gpt2", {"variant": "hybrid"}, "a decoder-only model or one with merged attention has no cache 'first-k'"),
    ],
)
def test_variants_ruled_out_by_sizes_are_refused_before_tracing(
    checkpoints: CheckpointCache, tmp_path: Path, family: str, choice: dict[str, str], reason: str
) -> None:
    """The refusal comes before the slow generation and tracing, and leaves no files."""
    steps: list[str] = []
    with pytest.raises((ExportError, PassError), match=reason):
        export_model(checkpoints(family, **TEXT), tmp_path / "out", **choice, on_step=steps.append)
    assert not steps
    assert not list(tmp_path.iterdir())


def test_the_default_variant_is_dedup(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for family in ("gpt2", "llama"):
        bundle = export_model(checkpoints(family), check=False)
        assert bundle.manifest.variant == "dedup"
        assert bundle.path.name.endswith("-dedup")


def test_sampling_checkpoints_sample_and_are_compared(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", "llama")
    edit_json(folder / "generation_config.json", do_sample=True, temperature=0.6, top_p=0.9)
    notes: list[str] = []
    bundle = export_model(folder, tmp_path / "out", max_new_tokens=5, on_note=notes.append)
    assert not notes
    parity = bundle.manifest.parity
    assert parity is not None and parity.settings == 3 and parity.tokens > 5 * 4 * 2
    assert bundle.manifest.generation["do_sample"] is True
    runner = Runner.load(bundle.path, threads=1)
    assert runner.options().sampling == Sampling(temperature=0.6, top_p=0.9)
    prompt = [[5, 6, 7]]
    assert len({tuple(runner.generate(prompt).sequences[0].tolist()) for _ in range(12)}) > 1
    expected = load_checkpoint(folder).model.generate(torch.tensor(prompt), do_sample=False, max_new_tokens=5)
    np.testing.assert_array_equal(runner.generate(prompt, do_sample=False).sequences, expected.numpy())


def test_sampling_that_no_bundle_has_is_searched_with_a_note(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", "llama")
    edit_json(folder / "generation_config.json", do_sample=True, epsilon_cutoff=0.1)
    notes: list[str] = []
    bundle = export_model(folder, tmp_path / "out", max_new_tokens=5, on_note=notes.append, check=False)
    assert "do_sample" not in bundle.manifest.generation
    assert [note.partition(": ")[2].partition(" (")[0] for note in notes] == ["epsilon_cutoff=0.1"]


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_batches_of_prompts_do_not_change_results_or_order(runner: Runner, batch_size: int) -> None:
    texts = [" ".join(text.split()[: 2 + index]) for index, text in enumerate(SENTENCES)]
    too_long = " ".join(SENTENCES * 2).encode()
    lines = [texts[0].encode(), too_long, b"\xff", *(text.encode() for text in texts[1:]), b" "]
    settings: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 6, "repetition_penalty": 1.3}
    results = list(run_lines(runner, lines, batch_size=batch_size, **settings))
    expected = [runner.generate_text([text], **settings)[0] for text in texts]
    assert [result.texts[0] if result.texts else None for result in results] == [
        expected[0],
        None,
        None,
        *expected[1:],
        None,
    ]
    assert "longer than the 63 that a prompt may have, since one of 64 is" in str(results[1].error)


def test_a_prompt_too_long_is_isolated(runner: Runner) -> None:
    lines = [b"[5, 6, 7]", json.dumps([5] * 60).encode(), b"[8]"]
    results = list(run_lines(runner, lines, LineFormat(ids=True), num_beams=1, max_new_tokens=8))
    assert [result.error is None for result in results] == [True, False, True]
    assert "makes sequences of 68 tokens, the model has 64 positions" in str(results[1].error)
    results = list(run_lines(runner, lines, LineFormat(ids=True), num_beams=1, max_length=12, eos_token_id=None))
    assert "max_length=12 (from the call) leaves no room for a new token, it counts the 60" in str(results[1].error)
    assert (len(results[0].sequences[0]), len(results[2].sequences[0])) == (9, 11)  # as each would be alone


def test_a_long_prompt_does_not_shorten_others(runner: Runner) -> None:
    """The default is 20 new tokens, as far as the positions of each line by itself allow."""
    lines = [b"[5, 6, 7]", json.dumps([5] * 60).encode(), b"[8]"]
    settings: dict[str, Any] = {"num_beams": 1, "eos_token_id": None}
    results = list(run_lines(runner, lines, LineFormat(ids=True), **settings))
    assert [len(result.sequences[0]) for result in results] == [20, 4, 20]
    expect_as_alone(runner, lines, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 3, "max_length": 18},
        {"num_beams": 2, "min_length": 9, "max_new_tokens": 9},
        {"num_beams": 1, "no_repeat_ngram_size": 2, "max_new_tokens": 16},
        {
            "num_beams": 3,
            "no_repeat_ngram_size": 1,
            "repetition_penalty": 1.5,
            "min_new_tokens": 8,
            "max_new_tokens": 8,
        },
    ],
)
def test_padding_of_a_batch_changes_no_line(runner: Runner, settings: dict[str, Any]) -> None:
    lines = [json.dumps(list(range(3, 3 + length))).encode() for length in (1, 9, 3, 9, 12)]
    expect_as_alone(runner, lines, **settings)


def expect_as_alone(runner: Runner, lines: list[bytes], **settings: Any) -> None:
    together = list(run_lines(runner, lines, LineFormat(ids=True), **settings))
    alone = [next(run_lines(runner, [line], LineFormat(ids=True), **settings)) for line in lines]
    assert [result.sequences for result in together] == [result.sequences for result in alone]


def test_prompts_are_truncated_to_fit_new_tokens(runner: Runner) -> None:
    text = " ".join(SENTENCES * 2).encode()
    for settings, new in (({"max_new_tokens": 5}, 5), ({}, 20), ({"max_length": 30}, 1)):
        (result,) = run_lines(runner, [text], LineFormat(truncate=True), num_beams=1, eos_token_id=None, **settings)
        assert result.error is None and result.cut > 0
        assert len(result.sequences[0]) == new


def test_a_new_token_may_be_an_end_token_at_once(runner: Runner) -> None:
    settings: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 4}
    (result,) = run_lines(runner, [b"[5, 6, 7]"], LineFormat(ids=True), **settings)
    (ended,) = run_lines(runner, [b"[5, 6, 7]"], LineFormat(ids=True), **settings, eos_token_id=result.sequences[0][0])
    assert ended.sequences == [result.sequences[0][:1]]


def test_published_checkpoint_configs(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """GPT-2's weights have no prefix and masks among them, an old Llama's the frequencies of its rotation."""
    for family in ("gpt2", "llama"):
        folder = checkpoints.copy(tmp_path / family, family)
        weights = load_file(folder / "model.safetensors")
        if family == "gpt2":
            weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
            weights |= {"h.0.attn.bias": torch.ones(1, 1, 64, 64), "h.0.attn.masked_bias": torch.tensor(-1e4)}
        else:
            weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        found, expected = (load_checkpoint(path).model.state_dict() for path in (folder, checkpoints(family)))
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, found[name]) for name, value in expected.items())


LONGROPE = {
    **{"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32},
    "long_factor": [9.0, 9.0, 9.0],
}


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gpt2", {"n_head": 5}, "n_embd 36 is not divisible by n_head 5"),
        ("gpt2", {"n_layer": 0}, "n_layer is 0; expected a whole number of at least 1"),
        ("gpt2", {"activation_function": "x"}, "activation_function 'x' is unknown"),
        ("gpt2", {"add_cross_attention": True}, "cross-attention is switched on; expected GPT2LMHeadModel alone"),
        ("falcon", {"num_attention_heads": 8}, "hidden_size 36 is not divisible by num_attention_heads 8"),
        ("falcon", {"multi_query": False, "num_kv_heads": 3}, "num_kv_heads is 3; expected num_attention_heads, 6"),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 4}, "not divisible by the 4 key heads"),
        ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn is false; expected true"),
        ("falcon", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3}, "is 3; expected 1 or 2"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "is 2; expected 1 without new_decoder_architecture"),
        ("llama", {"num_key_value_heads": 4}, "num_attention_heads 6 is not divisible by the 4 key heads"),
        (
            "llama",
            {"rope_parameters": {**LONGROPE, "short_factor": [1.0, 0.0, 1.0]}},
            "short_factor of rope_parameters is [1.0, 0.0, 1.0]; expected a list of numbers above 0",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "nope", "rope_theta": 1e4}},
            "rope_type is 'nope'; expected one of",
        ),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}}, "factor of rope_param"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "expected a number above 0"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads is 0; expected a whole number of at least 1"),
        ("llama", {"hidden_size": "7"}, "hidden_size is '7'; expected a whole number of at least 1"),
        ("llama", {"max_position_embeddings": 2}, "max_position_embeddings is 2; expected 3 at least"),
        ("llama", {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; expected at most 1000"),
        (
            "mistral",
            {"sliding_window": 1},
            "sliding_window is 1; expected a whole number from 2 to 2,147,483,647, or none",
        ),
        ("mistral", {"sliding_window": 2**31}, "sliding_window is 2147483648; expected a whole number from 2 to"),
        (
            "stablelm",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.3}},
            "partial_rotary_factor 0.3 rotates 3 of the 12 numbers of a head, which are rotated in pairs",
        ),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; expected a number above 0"),
        ("gemma2", {"attn_logit_softcapping": -2.0}, "attn_logit_softcapping is -2.0; expected a number above 0"),
        ("gemma2", {"use_bidirectional_attention": True}, "expected a model that generates from left to right"),
        ("bloom", {"seq_length": 0}, "seq_length is 0; expected a whole number of at least 1"),
        ("bloom", {"n_head": 5}, "hidden_size 36 is not divisible by n_head 5"),
        ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "clip_qkv of attn_config is 6.0; expected none"),
        ("olmo", {"clip_qkv": 8.0}, "clip_qkv is 8.0; expected none"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "only LlamaForCausalLM generates text"),
    ],
)
def test_configs_that_cannot_be_exported(
    checkpoints: CheckpointCache, tmp_path: Path, family: str, changes: dict[str, Any], reason: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c", family)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ExportError) as caught:
        load_checkpoint(folder)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
