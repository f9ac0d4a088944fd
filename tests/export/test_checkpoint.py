"""Checkpoints that load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from transformers.utils import logging as transformers_logging

from support.checkpoints.edits import edit_json, edit_weights
from support.checkpoints.families import CLASSES, CheckpointCache
from tightbeam.export.checkpoint.audio import speech_samples
from tightbeam.export.checkpoint.generation import check_settings, limit_length
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.families.bart_like import BartLike
from tightbeam.export.families.table import FAMILIES

FAMILY_NAMES = tuple(CLASSES)
EAGER = ("fsmt", "led", "longt5", "prophetnet", "t5gemma")
BART_LIKE = tuple(family.model_type for family in FAMILIES if isinstance(family, BartLike))


@pytest.mark.parametrize("tokenizer", [False, True])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_loads_every_family(checkpoints: CheckpointCache, family: str, tokenizer: bool) -> None:
    folder = checkpoints(family, tokenizer=tokenizer)
    loaded = load_checkpoint(folder)
    reference = CLASSES[family][1].from_pretrained(folder)
    assert loaded.name == folder.name
    assert loaded.path == folder.resolve()
    assert loaded.family.model_type == family
    assert type(loaded.model).__name__ == loaded.family.architecture
    assert (loaded.tokenizer is not None) == tokenizer
    assert not loaded.model.training
    assert loaded.config._attn_implementation == ("eager" if family in EAGER else "sdpa")
    expected = reference.state_dict()
    assert loaded.model.state_dict().keys() == expected.keys()
    for name, tensor in loaded.model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name


# FSMT has positions of its own, and SeamlessM4T counts them from its padding token.
@pytest.mark.parametrize("family", sorted(set(BART_LIKE) - {"fsmt", "seamless_m4t", "seamless_m4t_v2"}))
def test_positions_of_every_family(checkpoints: CheckpointCache, family: str) -> None:
    loaded = load_checkpoint(checkpoints(family))
    assert isinstance(loaded.family, BartLike)
    embedding, offset = loaded.model.get_decoder().embed_positions, loaded.family.position_offset
    table = embedding.weights if family == "m2m_100" else embedding.weight
    limit = loaded.sizes.max_target
    assert table.shape == (limit + offset, loaded.config.d_model)
    first = table[offset]
    if family in ("pegasus", "marian"):  # sin(0) in the first half, cos(0) in the second
        assert torch.equal(first, torch.cat([torch.zeros(18), torch.ones(18)]))
    decoder, seen = loaded.model.get_decoder(), []
    hook = decoder.embed_positions.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    decoder(input_ids=torch.tensor([[5]]), encoder_hidden_states=torch.zeros(1, 2, loaded.config.d_model))
    hook.remove()
    assert torch.equal(seen[0].flatten(), first)


def test_half_precision_weights_become_float32(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "half")
    edit_weights(folder, lambda weights: weights.update({name: w.half() for name, w in weights.items()}))
    edit_json(folder / "config.json", dtype="float16")
    assert {tensor.dtype for tensor in load_checkpoint(folder).model.state_dict().values()} == {torch.float32}


def test_shards_load(checkpoints: CheckpointCache) -> None:
    folder = checkpoints("bart", max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    whole = load_checkpoint(checkpoints("bart")).model.state_dict()
    for name, tensor in load_checkpoint(folder).model.state_dict().items():
        assert torch.equal(tensor, whole[name]), name


@pytest.mark.parametrize("family", BART_LIKE)
def test_tensors_that_transformers_supplies_may_be_missing(
    checkpoints: CheckpointCache, tmp_path: Path, family: str
) -> None:
    """The final bias (zero), and the computed position tables, which google/pegasus-xsum does not store either."""
    folder = checkpoints.copy(tmp_path / family, family)
    before = load_checkpoint(folder).model.state_dict()
    computed = next(f for f in FAMILIES if f.model_type == family).computed_weights

    def drop(weights: dict[str, torch.Tensor]) -> None:
        for name in ("final_logits_bias", *computed):
            weights.pop(name, None)

    edit_weights(folder, drop)
    after = load_checkpoint(folder).model.state_dict()
    assert "final_logits_bias" not in after or not after["final_logits_bias"].any()
    for name in before:
        assert name == "final_logits_bias" or torch.equal(before[name], after[name]), name


def test_tied_weights_may_be_stored_under_any_of_their_names(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    before = load_checkpoint(checkpoints("bart")).model.state_dict()
    every = tmp_path / "every"
    edit_weights(
        checkpoints.copy(every),
        lambda w: w.update({k: w["model.shared.weight"].clone() for k in before if "embed_tokens" in k}),
    )
    other = tmp_path / "other"
    edit_weights(checkpoints.copy(other), lambda w: w.update({"lm_head.weight": w.pop("model.shared.weight")}))
    for folder in (every, other):
        for name, tensor in load_checkpoint(folder).model.state_dict().items():
            assert torch.equal(tensor, before[name]), name


def test_fairseq_version_counters_are_ignored(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "old", "mbart")
    edit_weights(folder, lambda w: w.update({"model.encoder.version": torch.tensor([3.0])}))
    load_checkpoint(folder)


def test_untied_and_unshared_embeddings_load(checkpoints: CheckpointCache) -> None:
    untied = load_checkpoint(checkpoints("bart", tie_word_embeddings=False)).model
    assert untied.lm_head.weight is not untied.model.shared.weight
    unshared = load_checkpoint(
        checkpoints("marian", share_encoder_decoder_embeddings=False, decoder_vocab_size=120, tie_word_embeddings=False)
    ).model
    assert unshared.lm_head.weight.shape[0] == 120


def test_generation_settings_of_generation_config(checkpoints: CheckpointCache) -> None:
    settings = {"num_beams": 4, "length_penalty": 2.0, "bad_words_ids": [[7, 8], [9]], "early_stopping": "never"}
    loaded = load_checkpoint(checkpoints("bart", generation=settings))
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    assert loaded.generation_config == settings | ids | {"decoder_start_token_id": 2, "forced_eos_token_id": 2}


def test_generation_settings_of_an_old_config(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "old")
    (folder / "generation_config.json").unlink()
    settings = {"num_beams": 4, "max_length": 42, "min_length": 5, "no_repeat_ngram_size": 3, "length_penalty": 2.0}
    edit_json(folder / "config.json", **settings)
    loaded = load_checkpoint(folder)
    assert settings.items() <= loaded.generation_config.items()
    assert loaded.generation_config["decoder_start_token_id"] == 2
    ids = torch.randint(3, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    fresh = transformers.BartForConditionalGeneration.from_pretrained(folder)
    explicit = transformers.GenerationConfig(**loaded.generation_config)
    mask = torch.ones_like(ids)
    expected = fresh.generate(ids, attention_mask=mask)
    assert torch.equal(loaded.model.generate(ids, attention_mask=mask, generation_config=explicit), expected)


@pytest.mark.parametrize(
    ("family", "name", "lowered"),
    [
        ("bart", "max_length", "max_length=64"),
        ("bart", "max_new_tokens", "max_new_tokens=63"),
        ("gpt2", "max_length", "max_length=64"),
        ("gpt2", "max_new_tokens", "max_length=64"),
    ],
)
def test_default_lengths_beyond_the_positions_are_lowered(
    checkpoints: CheckpointCache, family: str, name: str, lowered: str
) -> None:
    """FSMT's config has a max_length of 200 whatever its positions; a prompt takes positions, too."""
    loaded = load_checkpoint(checkpoints(family, generation={name: 200}))
    note = f"{name}=200 of the checkpoint exceeds the model's 64 positions, so the bundle has {lowered}"
    assert limit_length(loaded) == note
    limits = {limit: loaded.generation_config.get(limit) for limit in ("max_length", "max_new_tokens")}
    assert [f"{limit}={value}" for limit, value in limits.items() if value is not None] == [lowered]
    assert {limit: getattr(loaded.model.generation_config, limit) for limit in limits} == limits
    check_settings(loaded, supported=True)
    assert not limit_length(loaded)


def test_recordings_of_the_comparison_fit_into_the_positions(checkpoints: CheckpointCache) -> None:
    loaded = load_checkpoint(checkpoints("speech_to_text", max_source_positions=9))
    samples = speech_samples(loaded)
    assert samples.positions == 9
    with torch.no_grad():
        loaded.model.generate(**samples.arguments(torch.float32), max_new_tokens=2)


def test_unknown_generation_settings_are_kept(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """The runner must receive them, so that it can refuse unknown ones."""
    folder = checkpoints.copy(tmp_path / "new")
    file, unknown = folder / "generation_config.json", {"num_beam_groups": 2, "some_new_setting": 1}
    edit_json(file, _from_model_config=True, **unknown)
    assert "some_new_setting" not in load_checkpoint(folder).generation_config  # transformers drops it
    edit_json(file, _from_model_config=False)
    assert unknown.items() <= load_checkpoint(folder).generation_config.items()


def test_loading_is_quiet_and_restores_logging(checkpoints: CheckpointCache, capfd: pytest.CaptureFixture[str]) -> None:
    folder = checkpoints("bart")
    capfd.readouterr()
    transformers_logging.set_verbosity_info()
    try:
        load_checkpoint(folder)
        assert transformers_logging.get_verbosity() == transformers_logging.INFO
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity_warning()
    assert capfd.readouterr() == ("", "")


def test_random_checkpoints_are_not_degenerate(checkpoints: CheckpointCache) -> None:
    ids = torch.randint(3, 90, (4, 9), generator=torch.Generator().manual_seed(1))
    for family in [name for name in FAMILY_NAMES if name != "whisper"]:
        model = load_checkpoint(checkpoints(family)).model
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16)
        assert len(torch.unique(tokens)) >= 4, family
        assert len(torch.unique(tokens, dim=0)) > 1
