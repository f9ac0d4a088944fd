"""Checkpoints that load, and those that do not, each refused in one line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from support.checkpoint_edits import edit_json, edit_weights, refusal
from support.checkpoints import CLASSES, CheckpointCache
from tightbeam.export.checkpoint import resolve as resolving
from tightbeam.export.checkpoint.audio import speech_samples
from tightbeam.export.checkpoint.generation import check_settings, limit_length
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.checkpoint.quiet import panics_as_errors
from tightbeam.export.checkpoint.resolve import ALIASES, resolve
from tightbeam.export.checkpoint.tokenizer import write_tokenizer
from tightbeam.export.errors import ExportError
from tightbeam.export.families.bart_like import BartLike
from tightbeam.export.families.table import FAMILIES

FAMILY_NAMES = tuple(CLASSES)
EAGER = ("fsmt", "led", "longt5", "prophetnet", "t5gemma")
BART_LIKE = tuple(family.model_type for family in FAMILIES if isinstance(family, BartLike))


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a hub that refuses connections."""
    download = huggingface_hub.snapshot_download

    def unreachable(hub_id: str, **options: Any) -> str:
        return str(download(hub_id, endpoint="http://127.0.0.1:9", cache_dir=tmp_path / "cache", **options))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)


# Checkpoints that load


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


@pytest.mark.parametrize("family", sorted(set(BART_LIKE) - {"fsmt"}))  # whose positions are of its own
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
    note = f"{name}=200 of the checkpoint is beyond the model's 64 positions: it is {lowered} in the bundle"
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
        assert len(torch.unique(tokens)) >= 5
        assert len(torch.unique(tokens, dim=0)) > 1


# Names


def test_demo_is_the_bundled_folder(monkeypatch: pytest.MonkeyPatch, checkpoints: CheckpointCache) -> None:
    monkeypatch.setattr(resolving, "DEMO_FOLDER", checkpoints("bart"))
    assert resolve("demo") == checkpoints("bart")
    assert load_checkpoint("demo").name == "demo"


def test_an_alias_is_fetched_from_the_hub(monkeypatch: pytest.MonkeyPatch, checkpoints: CheckpointCache) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(hub_id: str, *, allow_patterns: list[str], **_options: Any) -> str:
        asked.append((hub_id, allow_patterns))
        return str(checkpoints("bart"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_checkpoint("bart-large-cnn").name == "bart-large-cnn"
    assert load_checkpoint("someone/my-model").name == "my-model"
    assert [hub_id for hub_id, _ in asked] == ["facebook/bart-large-cnn", "someone/my-model"]
    assert not any("bin" in pattern or pattern == "*" for _, patterns in asked for pattern in patterns)


def test_aliases_are_unique_and_end_like_their_hub_id() -> None:
    assert len(ALIASES) == sum(len(family.aliases) for family in FAMILIES)
    assert all(hub_id.rpartition("/")[2] == alias for alias, hub_id in ALIASES.items())
    assert "demo" not in ALIASES
    wanted = {
        "bart-large-cnn",
        "distilbart-cnn-12-6",
        "pegasus-xsum",
        "opus-mt-en-de",
        "mbart-large-50-many-to-many-mmt",
        "flan-t5-base",
    }
    assert wanted <= ALIASES.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bart-large-cnm", "bart-large-cnn"),
        ("pegasus", "pegasus-"),
        ("zzzzzz", "aliases: demo"),
        ("./nowhere", "no such folder"),
        ("a/b/c", "no such folder"),
        ("/nowhere/at/all", "no such folder"),
        ("", "no such folder"),
    ],
)
def test_unknown_names(name: str, expected: str) -> None:
    assert expected in refusal(name)


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("name", ["facebook/bart-large-cnm", "bart-large-cnn"])
def test_an_unreachable_hub_fails_at_once(name: str) -> None:
    start = time.perf_counter()
    message = refusal(name)
    assert time.perf_counter() - start < 10
    assert "could not be fetched" in message
    assert "bart-large-cnn" in message


def test_file_or_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    assert "expected a checkpoint folder" in refusal(tmp_path / "a.txt")


# Configs


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"model_type": "bert"},
            "model_type is 'bert'; supported families: bart, blenderbot, blenderbot-small, bloom, falcon, ",
        ),
        ({"model_type": "florence2"}, "model_type is 'florence2': it is not written; the nearest are vision-encoder-"),
        ({"model_type": ...}, "there is no model_type; supported families: bart"),
        ({"architectures": ["BartForSequenceClassification"]}, "only BartForConditionalGeneration generates text"),
        ({"quantization_config": {"quant_method": "x"}}, "quantized"),
        ({"d_model": 37}, "d_model 37 is not divisible by encoder_attention_heads 2"),
        ({"decoder_attention_heads": 5}, "not divisible by decoder_attention_heads 5"),
        ({"decoder_attention_heads": 0}, "decoder_attention_heads is 0; expected a whole number of at least 1"),
        ({"vocab_size": 10**400}, "vocab_size is 1000"),
        ({"decoder_layers": -1}, "decoder_layers is -1"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"d_model": "many"}, "d_model"),
        ({"activation_function": "gleu"}, "activation_function 'gleu' is unknown"),
        ({"pad_token_id": 101}, "pad_token_id is 101, outside the vocabulary of 101"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id is -1, outside the vocabulary"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is false"),
    ],
)
def test_contradicting_configs(
    checkpoints: CheckpointCache, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    edit_json(folder / "config.json", **changes)
    message = refusal(folder)
    assert expected in message
    assert "config.json" in message


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "expected"), [(b"{", "not readable as JSON"), (b"[]", "expected a JSON object"), (b"\xff", "JSON")]
)
def test_broken_json(checkpoints: CheckpointCache, tmp_path: Path, file: str, content: bytes, expected: str) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    (folder / file).write_bytes(content)
    message = refusal(folder)
    assert expected in message
    assert file in message


def test_a_generation_id_outside_the_vocabulary(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    edit_json(folder / "generation_config.json", forced_bos_token_id=101)
    assert "generation_config.json: forced_bos_token_id is 101" in refusal(folder)


# Weights


def test_no_weights(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    (folder / "model.safetensors").unlink()
    assert "no weights; expected model.safetensors" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    message = refusal(folder)
    assert "pickled weights are not read" in message
    assert "save_pretrained" in message


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:4], lambda b: b"", lambda b: b"\xff" * 8 + b[8:]])
def test_damaged_weights(checkpoints: CheckpointCache, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = checkpoints.copy(tmp_path / "c") / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert "model.safetensors: damaged or truncated" in refusal(file.parent)


def test_shard_indexes(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", max_shard_size="100KB")
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())["weight_map"]
    first = next(iter(good))

    for shard, expected in [
        ("../other.safetensors", "points outside the folder"),
        (str(tmp_path / "x.safetensors"), "points outside the folder"),
        ("gone.safetensors", "names gone.safetensors, which is missing"),
        ("pytorch_model.bin", "only safetensors are read"),
    ]:
        edit_json(index, weight_map={**good, first: shard})
        assert expected in refusal(folder)
    for bad in ([], {}, {first: 3}):
        edit_json(index, weight_map=bad)
        assert "weight_map must map" in refusal(folder)
    edit_json(index, weight_map=good)
    (folder / good[first]).write_bytes(b"short")
    assert "damaged or truncated" in refusal(folder)
    (folder / good[first]).unlink()
    assert "which is missing" in refusal(folder)


FC1 = "model.decoder.layers.1.fc1.weight"  # [44, 36]
POSITIONS = "model.decoder.embed_positions.weight"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda w: w.pop(FC1), f"{FC1} is missing, expected shape [44, 36]"),
        (lambda w: w.update({FC1: w[FC1].T.contiguous()}), f"{FC1} has shape [36, 44], expected [44, 36]"),
        (lambda w: w.update({FC1: w[FC1][:43].contiguous()}), f"{FC1} has shape [43, 36], expected [44, 36]"),
        (
            lambda w: w.update({"model.decoder.extra.weight": torch.ones(2)}),
            "model.decoder.extra.weight is not part of",
        ),
        (lambda w: w.pop("model.shared.weight"), "is missing, expected shape [101, 36]"),
        (
            lambda w: w.pop("model.decoder.embed_positions.weight"),
            "embed_positions.weight is missing, expected shape [66, 36]",
        ),
        (lambda w: w[FC1].view(-1)[7].fill_(float("nan")), f"NaN or infinite weights in {FC1}"),
        (lambda w: w["final_logits_bias"][0, 3].fill_(float("-inf")), "NaN or infinite weights in final_logits_bias"),
    ],
)
def test_weights_that_do_not_fit(
    checkpoints: CheckpointCache, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    edit_weights(folder, change)
    assert expected in refusal(folder)


def test_all_errors_are_reported_at_once(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c")

    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["extra"] = torch.ones(1)
        weights[FC1] = torch.ones(2, 2)
        for name in [name for name in weights if "encoder.layers.0" in name]:
            del weights[name]

    edit_weights(folder, change)
    message = refusal(folder)
    assert f"{FC1} has shape [2, 2]" in message
    assert "is missing" in message
    assert "and 15 more" in message
    assert len(message) < 800


def test_another_vocabulary_size(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    edit_json(folder / "config.json", vocab_size=103)
    assert "model.shared.weight has shape [101, 36], expected [103, 36]" in refusal(folder)


# Tokenizers


@pytest.mark.parametrize("content", [b"{", b"{}", b"[1]", b"\xff\xfe"])
def test_a_broken_tokenizer(checkpoints: CheckpointCache, tmp_path: Path, content: bytes) -> None:
    folder = checkpoints.copy(tmp_path / "c", tokenizer=True)
    (folder / "tokenizer.json").write_bytes(content)
    assert "the tokenizer cannot be read" in refusal(folder)


def test_a_tokenizer_that_panics(
    checkpoints: CheckpointCache, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The post-processor names a token without an id: Rust panics, which is a BaseException in Python."""
    folder = checkpoints.copy(tmp_path / "c", tokenizer=True)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    assert content["post_processor"]["special_tokens"].pop("</s>")
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    message = refusal(folder)
    assert "the tokenizer cannot be read (PanicError: no entry found for key); restore its files" in message
    assert capfd.readouterr().err == ""


def test_a_tokenizer_that_panics_on_another_text_ends_an_export(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Loading encodes one short text alone, which passes."""
    folder = checkpoints.copy(tmp_path / "c", tokenizer=True)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    content["post_processor"]["special_tokens"].pop("</s>")
    broken = Tokenizer.from_str(json.dumps(content))
    tokenizer = load_checkpoint(folder).tokenizer
    tokenizer.backend_tokenizer.post_processor = broken.post_processor
    with pytest.raises(ExportError, match=r"fails on a text .PanicError: no entry found"):
        write_tokenizer(tokenizer, tmp_path)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_only_panics_become_errors(interrupt: type[BaseException], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(interrupt), panics_as_errors():
        print("held back", file=sys.stderr)
        raise interrupt
    assert capfd.readouterr().err == "held back\n"


@pytest.mark.parametrize("left", ["tokenizer_config.json", "vocab.json", "merges.txt", "source.spm"])
def test_an_incomplete_tokenizer(checkpoints: CheckpointCache, tmp_path: Path, left: str) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    (folder / left).write_text("{}")
    assert f"an incomplete tokenizer ({left})" in refusal(folder)


def test_a_tokenizer_of_another_vocabulary(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", vocab_size=60)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((checkpoints("bart", tokenizer=True) / name).read_bytes())
    message = refusal(folder)
    assert "the tokenizer has ids up to" in message
    assert "but vocab_size is 60" in message
