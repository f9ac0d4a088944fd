"""Checkpoints in the forms in which they are published: names of old releases, and tokenizers as few files."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file

from support.checkpoints.edits import edit_json, edit_weights, refusal
from support.checkpoints.families import SENTENCES, CheckpointCache
from tightbeam.deploy.text.tokenizer import load_codec
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.checkpoint.tokenizer import load_tokenizer, write_tokenizer
from tightbeam.export.errors import ExportError

TEXTS = (*SENTENCES, "Hello World, it's  42 o'clock!", "naïve café 東京 </s> <extra_id_3>", "")


@pytest.mark.parametrize(
    ("family", "published"),
    [("mpt", "MPTForCausalLM"), ("t5", "T5WithLMHeadModel"), ("bart", "BartModel"), ("gpt2", "GPT2Model")],
)
def test_architectures_of_published_checkpoints(
    checkpoints: CheckpointCache, tmp_path: Path, family: str, published: str
) -> None:
    """A model without its head has names without its prefix, and the tied embeddings alone."""
    expected = load_checkpoint(checkpoints(family)).model
    folder = checkpoints.copy(tmp_path / "old", family)
    edit_json(folder / "config.json", architectures=[published])
    if not published.startswith("T5"):
        prefix = f"{expected.base_model_prefix}."
        edit_weights(folder, lambda w: [w.update({k.removeprefix(prefix): w.pop(k)}) for k in list(w)])
    found = load_checkpoint(folder).model.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found[name], tensor), name


def test_an_architecture_with_another_head_is_refused(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "other", "t5")
    for architectures in (["T5EncoderModel"], ["T5ForQuestionAnswering"], "T5Model", [7]):
        edit_json(folder / "config.json", architectures=architectures)
        assert "only T5ForConditionalGeneration generates text" in refusal(folder)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("m2m_100", ["model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"]),
        ("gpt_bigcode", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("llama", ["model.layers.1.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_computed_tensors_of_old_releases_are_ignored(
    checkpoints: CheckpointCache, tmp_path: Path, family: str, names: list[str]
) -> None:
    folder = checkpoints.copy(tmp_path / "old", family)
    edit_weights(folder, lambda w: w.update({name: torch.ones(3) for name in names}))
    found, expected = (load_checkpoint(path).model.state_dict() for path in (folder, checkpoints(family)))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_settings_of_generation_without_use_cache(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Those of the published ProphetNets have none, which is the default, true."""
    folder = checkpoints.copy(tmp_path / "prophetnet", "prophetnet")
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 5}
    (folder / "generation_config.json").write_text(json.dumps({"_from_model_config": True, "num_beams": 4, **ids}))
    assert load_checkpoint(folder).generation_config["num_beams"] == 4
    edit_json(folder / "generation_config.json", use_cache=False)
    assert "use_cache is false" in refusal(folder)


def test_the_printed_command_converts_pickled_weights(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "it's pickled", tokenizer=True)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    command = refusal(folder).partition("add model.safetensors by ")[2]
    python, _, code = shlex.split(command)
    assert python == "python"
    exec(compile(code, "command", "exec"), {})  # in this process, which has transformers already
    found, expected = (load_checkpoint(path) for path in (folder, checkpoints("bart", tokenizer=True)))
    assert found.tokenizer is not None
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor), name


def test_pickled_weights_of_the_hub(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not downloaded, so that the snapshot has no weights."""
    folder = checkpoints.copy(tmp_path / "models--facebook--bart-large-cnn" / "snapshots" / ("0" * 40))
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    message = refusal("bart-large-cnn")
    assert message.startswith("facebook/bart-large-cnn: no model.safetensors on the hub, and pickled weights are not")
    assert "hf download facebook/bart-large-cnn --local-dir bart-large-cnn && python -c " in message
    assert message.endswith(" && export-model bart-large-cnn")


@pytest.mark.parametrize("name", ["<mask>", "<image_soft_token>", "[PAD]"])
def test_added_tokens_may_lie_outside_the_vocabulary(checkpoints: CheckpointCache, tmp_path: Path, name: str) -> None:
    """Those of bart-large-cnn, Gemma 3 of text and tuned Llamas have one token more than the embedding has rows."""
    folder = checkpoints.copy(tmp_path / "added", tokenizer=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    while len(tokenizer) < 101:
        tokenizer.add_tokens([f"filler{len(tokenizer)}"])
    tokenizer.add_special_tokens({"mask_token": name} if name == "<mask>" else {"additional_special_tokens": [name]})
    tokenizer.save_pretrained(folder)
    assert load_checkpoint(folder).tokenizer.convert_tokens_to_ids(name) == 101


def sentencepiece_model(file: Path, **options: Any) -> None:
    """A tiny sentencepiece model."""
    lines = file.with_suffix(".txt")
    lines.write_text("\n".join([*SENTENCES, *TEXTS] * 3))
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines), model_prefix=str(file.with_suffix("")), hard_vocab_limit=False, minloglevel=2, **options
    )
    lines.unlink()
    file.with_suffix(".vocab").unlink()


UNIGRAM: dict[str, Any] = {"vocab_size": 110, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
BYTES: dict[str, Any] = {"vocab_size": 340, "model_type": "bpe", "byte_fallback": True}


@pytest.mark.parametrize(
    ("model_type", "file", "options"),
    [
        ("t5", "spiece.model", UNIGRAM),
        ("pegasus", "spiece.model", UNIGRAM),
        ("mbart", "sentencepiece.bpe.model", {"vocab_size": 110}),
        ("llama", "tokenizer.model", BYTES),
        ("gemma", "tokenizer.model", {**BYTES, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}),
    ],
)
def test_a_sentencepiece_model_alone(tmp_path: Path, model_type: str, file: str, options: dict[str, Any]) -> None:
    """The tokenizer of a bundle needs no transformers, and gives transformers' ids and texts."""
    folder, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    sentencepiece_model(folder / file, **options)
    with quiet_transformers():
        tokenizer = load_tokenizer(folder, 1000)
        entry = write_tokenizer(tokenizer, bundle)
    assert tokenizer is not None and entry is not None and entry.kind == "tokenizers"
    codec: Any = load_codec(SimpleNamespace(path=bundle, manifest=SimpleNamespace(tokenizer=entry)))  # type: ignore[arg-type]
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert codec.encode(text) == ids
        assert codec.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_what_a_sentencepiece_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers speaks of tiktoken where sentencepiece is made for a newer protobuf, and of three ways to make a
    tokenizer where it would read tokenizer.json alone."""
    (tmp_path / "config.json").write_text('{"model_type": "umt5"}')
    sentencepiece_model(tmp_path / "spiece.model", **UNIGRAM)
    with quiet_transformers(), pytest.raises(ExportError, match=r"from tokenizer.json alone, which is missing\); load"):
        load_tokenizer(tmp_path, 1000)

    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with quiet_transformers(), pytest.raises(ExportError, match=r"halted.*\); pip install 'sentencepiece<0.2.3', add "):
        load_tokenizer(tmp_path, 1000)
