"""Features of ProphetNet alone: two-stream self-attention, biases made of a query, positions that begin at one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ProphetNetTokenizer
from transformers.models.prophetnet.modeling_prophetnet import compute_all_stream_relative_buckets

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import CheckpointCache
from support.references.expected import expect_equal
from support.references.generate_runs import SETTINGS, batch, runs_of
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.deploy.text.tokenizer import load_codec
from tightbeam.export import export_model
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.checkpoint.sample_texts import TOKENIZER_TEXTS
from tightbeam.export.tracing.text.prophetnet import buckets_of
from tightbeam.export.writing.entries import sizes_of
from tightbeam.graph_passes import PRESETS, PassError, RunSize, rewrite, same_for_all
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder
from tightbeam.graph_passes.canonical.two_stream import canonicalise_two_stream

LONGEST = 63  # rows of the position table, but for the first, which is no position


@pytest.mark.slow
def test_bucket_table_matches_transformers(bundles: BundleCache) -> None:
    """Both streams at every distance: the prediction is one position ahead."""
    config = bundles.trace("prophetnet")[0].config
    table = buckets_of(config, LONGEST + 1)
    positions = torch.arange(1, LONGEST + 1)[None]
    main, predicting = compute_all_stream_relative_buckets(config.num_buckets, config.relative_max_distance, positions)
    back = torch.arange(LONGEST)[:, None] - torch.arange(LONGEST)
    past = back >= 0
    assert torch.equal(main[0].long()[past], table[back[past]])
    assert torch.equal(predicting[0, :, :LONGEST].long()[past], table[back[past] + 1])
    assert table[-1] == config.num_buckets - 1 > table[config.num_buckets // 2] > table[0] == 0


def test_two_streams_without_a_cache_match_the_steps(bundles: BundleCache) -> None:
    """The guard measures what the steps compute, which `use_cache=False` of transformers does not give. In float64, but
    for the softmax of transformers' steps."""
    checkpoint = load_checkpoint(bundles.checkpoints("prophetnet", ngram=3))
    model = checkpoint.model.double()
    ids, mask = (torch.tensor(array) for array in batch(99, 0))
    mask = mask.double()
    given = {"attention_mask": mask, "num_beams": 1, "max_new_tokens": 12, "min_new_tokens": 12}
    with torch.no_grad():
        steps = model.generate(ids, **given, return_dict_in_generate=True, output_logits=True)
        expected = torch.stack(steps.logits, dim=1)
        arguments = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": steps.sequences[:, :-1]}
        with checkpoint.family.attention_interface(model):
            found = model(**arguments, use_cache=False).logits
        without_cache = model(**arguments, use_cache=False).logits
    largest = expected.abs().max()
    assert (found - expected).abs().max() < 1e-5 * largest
    assert (without_cache - expected)[:, 1:].abs().max() > 0.1 * largest
    assert (model.config.ngram, model.get_decoder().ngram) == (3, 3)


SHAPES = (
    {"ngram": 3, "tie_word_embeddings": False, "num_buckets": 5, "relative_max_distance": 3},
    {
        **{"ngram": 1, "activation_function": "relu", "num_decoder_attention_heads": 1},
        **{"num_encoder_attention_heads": 1, "num_encoder_layers": 1, "num_decoder_layers": 1},
    },
    {
        **{"hidden_size": 40, "num_decoder_attention_heads": 5, "num_buckets": 32},
        **{"relative_max_distance": 128, "num_encoder_layers": 1, "num_decoder_layers": 1},
    },
)
"""A bundle runs one predicting stream of any number."""


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_and_streams(bundles: BundleCache, shape: dict[str, Any]) -> None:
    model = bundles.trace("prophetnet", seed=4, **shape)[0].model
    assert (model.lm_head.weight is model.prophetnet.word_embeddings.weight) == ("tie_word_embeddings" not in shape)
    for variant in PRESETS:
        runner = Runner.load(bundles(variant, "prophetnet", seed=4, **shape), threads=1)
        expect_equal(runner, model, runs_of(runner, SETTINGS[5:7]))


@pytest.mark.parametrize(("seed",), slow_unless([(seed,) for seed in range(6)], lambda seed: seed < 2))
def test_each_layer_may_have_another_cache(bundles: BundleCache, tmp_path: Path, seed: int) -> None:
    runner = Runner.load(bundles.mixed("prophetnet", seed, tmp_path / "mixed"), threads=1)
    expect_equal(runner, bundles.trace("prophetnet")[0].model, runs_of(runner, SETTINGS[3:7]))


@pytest.mark.parametrize(("variant",), slow_unless([(name,) for name in PRESETS], lambda name: name == "kcache"))
def test_the_longest_source_and_output(bundles: BundleCache, variant: str) -> None:
    """A source may have a token more than there are positions, which then shares the last one, as in transformers."""
    model = bundles.trace("prophetnet")[0].model
    runner = Runner.load(bundles(variant, "prophetnet"), threads=1)
    assert (runner.manifest.sizes.max_source, runner.manifest.sizes.max_target) == (LONGEST + 1, LONGEST)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 1, (LONGEST + 1, LONGEST))
    lengths = {"max_length": LONGEST, "min_length": LONGEST}
    expect_equal(runner, model, [(ids, mask, {"num_beams": beams, **lengths}) for beams in (1, 2, 3, 4)])


def test_only_the_main_stream_is_cached(bundles: BundleCache) -> None:
    """A bundle allocates what the formula gives for the main stream alone."""
    for variant, preset in PRESETS.items():
        runner = Runner.load(bundles(variant, "prophetnet"), threads=1)
        sizes = sizes_of(runner.manifest)
        assert sizes.streams == 2
        ids, mask = batch(sizes.source_vocabulary, 0, (9, 3))
        runner.generate(ids, mask, num_beams=4, max_new_tokens=7, min_new_tokens=7, no_repeat_ngram_size=0)
        assert runner.cache_bytes == preset.cache_bytes(sizes, RunSize(B=2, M=4, N=9, T=7))


def test_a_step_reads_each_weight_once(bundles: BundleCache) -> None:
    """Both streams go through every product together, and rows are matrices throughout."""
    canonical = bundles.trace("prophetnet")[1]
    for variant in ("dedup", "el", "kcache"):
        graphs, results = rewrite(canonical, same_for_all(PRESETS[variant], canonical.sizes.L, ""))
        matched = {result.name: result.matched for result in results}
        assert matched["step_rows"] > 0
        assert matched["fold_residuals"] == 3 * canonical.sizes.L
        assert matched["tie_embeddings"] == 1
        own = [node for node in graphs.decoder.nodes if node.op in ("BeamAttention", "BeamLatentAttention")]
        assert len(own) == canonical.sizes.L


def test_text_export_with_the_guard(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """The whole export with its comparison and its measurements."""
    folder = checkpoints("prophetnet", tokenizer=True)
    bundle = export_model(folder, tmp_path / "out", variant="kcache", max_new_tokens=8)
    assert bundle.manifest.parity is not None
    assert bundle.manifest.parity.tokens > 0
    assert [(found.part, found.layer) for found in bundle.manifest.guard] == [
        (part, layer) for part in ("source", "generated") for layer in range(2)
    ]
    assert all(found.error is not None and found.error <= found.allowed for found in bundle.manifest.guard)


PIECES = (
    *("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "[X_SEP]", "the", "##ing", "##ed", "cafe", ".", ",", "'", "?", "$"),
    *"abcdefghijklmnopqrstuvwxyz0123456789",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"),
    *(f"[unused{n}]" for n in range(12)),
)
"""A piece for each of the model's 99 tokens: an id without one is decoded in another way by each library."""


@pytest.mark.parametrize(
    ("basic", "kind"), [(True, "tokenizers"), pytest.param(False, "transformers", marks=pytest.mark.slow)]
)
def test_prophetnet_tokenizer(checkpoints: CheckpointCache, tmp_path: Path, basic: bool, kind: str) -> None:
    """Transformers has this tokenizer in Python alone; it becomes a tokenizer.json where that gives the same ids."""
    folder = checkpoints.copy(tmp_path / "own", "prophetnet")
    pieces = tmp_path / "pieces"
    pieces.write_text("".join(f"{piece}\n" for piece in PIECES))
    ProphetNetTokenizer(str(pieces), do_basic_tokenize=basic).save_pretrained(folder)
    bundle = export_model(folder, tmp_path / "out", variant="dedup", max_new_tokens=8)
    assert bundle.manifest.tokenizer is not None
    assert bundle.manifest.tokenizer.kind == kind
    codec, tokenizer = load_codec(bundle), load_checkpoint(folder).tokenizer
    assert codec is not None
    for text in (*TOKENIZER_TEXTS, "a [X_SEP] b[X_SEP]c [SEP] d", "Die Straße, İstanbul", "x" * 101, "A\u0301 e\u0301"):
        ids = codec.encode(text)
        assert ids == tokenizer(text).input_ids
        assert codec.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_trace_of_another_form_is_refused(bundles: BundleCache) -> None:
    canonical = bundles.trace("prophetnet")[1].copy()
    with pytest.raises(PassError, match="found 0 places where streams become rows, expected 1"):
        canonicalise_two_stream(bundles.trace("bart")[1])
    for node in canonical.decoder.nodes:
        if node.name == "self.1":
            node.inputs = node.inputs[:3]
    canonicalise_encoder_decoder(canonical)
    with pytest.raises(PassError, match=r"self\.1 adds something else to its scores than a bias by bucket"):
        rewrite(canonical, same_for_all(PRESETS["dedup"], canonical.sizes.L, ""))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ngram": 0}, "ngram is 0; expected a whole number of at least 1"),
        ({"num_decoder_attention_heads": 5}, "hidden_size 36 is not divisible by num_decoder_attention_heads 5"),
        ({"num_buckets": 1}, "num_buckets is 1; expected at least 2"),
        ({"relative_max_distance": 4}, "relative_max_distance is 4; expected more than half of the 8 buckets"),
        ({"max_position_embeddings": 3}, "max_position_embeddings is 3; expected at least 4"),
        ({"pad_token_id": 1}, "pad_token_id is 1; transformers counts positions from it, and expects 0"),
        ({"activation_function": "geluu"}, "activation_function 'geluu' is unknown"),
        ({"add_cross_attention": False}, "add_cross_attention is false"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is false"),
        ({"architectures": ["ProphetNetForCausalLM"]}, "only ProphetNetForConditionalGeneration generates text"),
    ],
)
def test_contradictory_configs_are_refused(
    checkpoints: CheckpointCache, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c", "prophetnet")
    edit_json(folder / "config.json", **changes)
    message = refusal(folder)
    assert expected in message
    assert "config.json" in message


def test_generation_without_a_cache_is_refused(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", "prophetnet")
    edit_json(folder / "generation_config.json", use_cache=False)
    assert "generation_config.json: use_cache is false, with which transformers mixes up the predicting" in refusal(
        folder
    )


def test_the_published_sizes(checkpoints: CheckpointCache) -> None:
    sizes = load_checkpoint(checkpoints("prophetnet", max_position_embeddings=512)).sizes
    assert (sizes.max_source, sizes.max_target, sizes.streams) == (512, 511, 2)
