"""Features of T5 alone: relative positions as tables, key heads wider or narrower than the model, long sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import CheckpointCache
from support.references.expected import expect_equal
from support.references.generate_runs import SETTINGS, batch, runs_of
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.export import export_model
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.tracing.relative_positions import SourceBias, StepBias, attentions_with_bias
from tightbeam.graph_passes import PRESETS, PassError, rewrite, same_for_all

FAMILIES = ("t5", "mt5", "umt5")
LENGTH = 64  # 4 n_positions, the longest that a bundle of the tests' checkpoints takes


@pytest.mark.parametrize("family", FAMILIES)
def test_bias_tables_match_transformers(bundles: BundleCache, family: str) -> None:
    model = bundles.trace(family)[0].model
    encoder, decoder = (attentions_with_bias(stack) for stack in (model.get_encoder(), model.get_decoder()))
    assert len(decoder) == (model.config.num_decoder_layers if family == "umt5" else 1)
    for attention in encoder:
        assert torch.equal(SourceBias(attention)(LENGTH, LENGTH), attention.compute_bias(LENGTH, LENGTH))
    for attention in decoder:
        table = StepBias(attention, LENGTH)
        for T in (0, 1, 12, 13, LENGTH - 1):
            table.positions = torch.tensor([[T]])
            assert torch.equal(table(1, T + 1), attention.compute_bias(1, T + 1, past_seen_tokens=T))


@pytest.mark.parametrize("family", FAMILIES)
def test_trace_has_tables_and_no_logarithm(bundles: BundleCache, family: str) -> None:
    graphs = bundles.trace(family)[1]
    for graph in (graphs.encoder, graphs.decoder):
        assert not {"Log", "Less", "Greater"} & {node.op for node in graph.nodes}
    own = [node for node in graphs.decoder.nodes if node.name.startswith("self.")]
    assert len(own) == graphs.sizes.L
    assert all(len(node.inputs) == 4 for node in own)
    assert len({node.inputs[3].name for node in own}) == (graphs.sizes.L if family == "umt5" else 1)
    for variant in ("dedup", "xcache"):
        rewritten, _ = rewrite(graphs, same_for_all(PRESETS[variant], graphs.sizes.L, ""))
        assert "positions" not in {tensor.name for tensor in rewritten.decoder.inputs}
        assert "Range" not in {node.op for node in rewritten.decoder.nodes}


UNTIED = {"tie_word_embeddings": False}
SHAPES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "t5",  # T5-3B: key heads together wider than the model, as in the tests' umT5
        {"d_kv": 20, "num_heads": 5, "feed_forward_proj": "relu", "num_layers": 1, "num_decoder_layers": 1},
    ),
    ("t5", {**UNTIED, "feed_forward_proj": "gated-gelu"}),  # T5 1.1 and Flan-T5, which are built as mT5
    ("t5", {"num_heads": 1, "d_kv": 36, "num_layers": 1, "num_decoder_layers": 1}),
    ("umt5", {**UNTIED, "num_layers": 1, "num_decoder_layers": 1}),  # logits that are not scaled
)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=str)
def test_shapes_and_heads(bundles: BundleCache, family: str, shape: dict[str, Any]) -> None:
    model = bundles.trace(family, seed=4, **shape)[0].model
    assert (model.lm_head.weight is model.shared.weight) == ("tie_word_embeddings" not in shape)
    assert model.config.scale_decoder_outputs == ("tie_word_embeddings" not in shape)
    for variant in PRESETS:
        runner = Runner.load(bundles(variant, family, seed=4, **shape), threads=1)
        expect_equal(runner, model, runs_of(runner, SETTINGS[4:9]))


@pytest.mark.slow
def test_key_heads_narrower_than_the_model(bundles: BundleCache) -> None:
    """In mt5-small keys do not determine values, so that variants which cache keys alone are refused."""
    shape = {"d_kv": 7, "num_layers": 1, "num_decoder_layers": 1}
    model = bundles.trace("mt5", **shape)[0].model
    for variant, preset in PRESETS.items():
        if {preset.source, preset.generated} & {"k", "first-k"}:
            with pytest.raises(PassError, match="have 21 numbers and are made of 36: they do not determine the values"):
                bundles(variant, "mt5", **shape)
        else:
            runner = Runner.load(bundles(variant, "mt5", **shape), threads=1)
            expect_equal(runner, model, runs_of(runner, SETTINGS[4:9]))


@pytest.mark.parametrize(("family", "seed"), [(FAMILIES[seed % 3], seed) for seed in range(6)])
def test_each_layer_may_have_another_cache(bundles: BundleCache, tmp_path: Path, family: str, seed: int) -> None:
    """Mixtures include ``kv-reordered``, whose layers alone still read the length of a past."""
    runner = Runner.load(bundles.mixed(family, seed, tmp_path / "mixed"), threads=1)
    expect_equal(runner, bundles.trace(family)[0].model, runs_of(runner, SETTINGS[3:9]))


@pytest.mark.parametrize(
    ("variant",), slow_unless([(name,) for name in PRESETS], lambda name: name in ("baseline", "kcache"))
)
def test_the_longest_source_and_output(bundles: BundleCache, variant: str) -> None:
    """Lengths beyond those of the training, and distances beyond the last bucket of the bias table."""
    model = bundles.trace("t5")[0].model
    runner = Runner.load(bundles(variant, "t5"), threads=1)
    assert runner.manifest.sizes.max_source == runner.manifest.sizes.max_target == LENGTH
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 1, (LENGTH, LENGTH - 1) * 6)
    lengths = {"max_length": LENGTH, "min_length": LENGTH}
    expect_equal(runner, model, [(ids, mask, {"num_beams": beams, **lengths}) for beams in (1, 2, 3, 5)])


def test_text_export_of_old_checkpoints(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """The whole export with its comparison, from a checkpoint with the table that T5's first version stored unused."""
    folder = checkpoints.copy(tmp_path / "old", "t5", tokenizer=True)
    weights = load_file(folder / "model.safetensors")
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(8, 3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    bundle = export_model(folder, tmp_path / "out", variant="el", max_new_tokens=8)
    assert bundle.manifest.parity is not None
    assert bundle.manifest.parity.tokens > 0
    assert {entry.name: entry.matched for entry in bundle.manifest.passes}["tie_embeddings"] == 1


CHRONOS = {"tokenizer_class": "MeanScaleUniformBins", "n_tokens": 4096, "n_special_tokens": 2, "prediction_length": 64}


@pytest.mark.slow
def test_chronos_is_exported_as_t5(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Without a tokenizer: Chronos makes token ids of a series by itself."""
    shape = {"vocab_size": 4096, "eos_token_id": 1, "num_layers": 1, "num_decoder_layers": 1}
    folder = checkpoints("t5", **shape, chronos_config=CHRONOS)
    bundle = export_model(folder, tmp_path / "out", variant="el", max_new_tokens=6)
    assert bundle.manifest.tokenizer is None
    assert bundle.manifest.parity is not None
    assert bundle.manifest.parity.tokens > 0
    runs = [(*batch(4096, beams), {"num_beams": beams, "max_new_tokens": 9}) for beams in (1, 2, 3, 5)]
    expect_equal(Runner.load(bundle.path, threads=1), load_checkpoint(folder).model, runs)


def test_the_limit_without_n_positions(checkpoints: CheckpointCache) -> None:
    assert load_checkpoint(checkpoints("mt5", n_positions=None)).sizes.max_source == 4 * 512


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"d_kv": 0}, "d_kv is 0; expected a whole number of at least 1"),
        ({"n_positions": 0}, "n_positions is 0"),
        (
            {"feed_forward_proj": "gleu", "dense_act_fn": ..., "is_gated_act": ...},
            "feed_forward_proj 'gleu' is unknown; expected relu, gated-gelu",
        ),
        ({"feed_forward_proj": "gated-gelu-x"}, "feed_forward_proj"),
        ({"relative_attention_num_buckets": 3}, "relative_attention_num_buckets is 3; expected an even number"),
        ({"relative_attention_max_distance": 4}, "relative_attention_max_distance is 4; expected more than half"),
        ({"architectures": ["ChronosBoltModelForForecasting"]}, "only T5ForConditionalGeneration generates text"),
        ({"architectures": ["T5EncoderModel"]}, "only T5ForConditionalGeneration generates text"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is false"),
    ],
)
def test_contradictory_configs_are_refused(
    checkpoints: CheckpointCache, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c", "t5")
    edit_json(folder / "config.json", **changes)
    message = refusal(folder)
    assert expected in message
    assert "config.json" in message
