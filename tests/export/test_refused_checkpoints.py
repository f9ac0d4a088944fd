"""Checkpoints that do not load: each is refused in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from support.checkpoints.edits import edit_json, edit_weights, refusal
from support.checkpoints.families import CheckpointCache
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.checkpoint.quiet import panics_as_errors
from tightbeam.export.checkpoint.tokenizer import write_tokenizer
from tightbeam.export.errors import ExportError

# Configs


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"model_type": "bert"},
            "model_type is 'bert'; supported families: apertus, bart, blenderbot, blenderbot-small, bloom, canary, ",
        ),
        ({"model_type": "florence2"}, "model_type is 'florence2': it is not written; the nearest are vision-encoder-"),
        (
            {"model_type": "switch_transformers"},
            "its layers have experts, for which there is no operator; the nearest is",
        ),
        ({"model_type": ...}, "there is no model_type; supported families: apertus, bart"),
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
        (
            lambda w: w["final_logits_bias"][0, :2].copy_(torch.tensor([float("inf"), float("-inf")])),
            "NaN or infinite weights in final_logits_bias",
        ),
    ],
)
def test_weights_that_do_not_fit(
    checkpoints: CheckpointCache, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    edit_weights(folder, change)
    assert expected in refusal(folder)


def test_weights_whose_sum_overflows_are_finite(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c")
    edit_weights(folder, lambda weights: weights["final_logits_bias"].fill_(3e38))
    assert load_checkpoint(folder).sizes.vocabulary == 101


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


@pytest.mark.parametrize("name", ["vocab", "merges"])
def test_a_tokenizer_that_names_a_file_of_this_machine(checkpoints: CheckpointCache, tmp_path: Path, name: str) -> None:
    """Its lines would become tokens of the bundle."""
    folder, private = checkpoints.copy(tmp_path / "c"), tmp_path / "private.txt"
    private.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nprivate\n")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", name: str(private)}), "utf-8"
    )
    assert f"tokenizer_config.json: {name} names a file, expected its content; remove it" in refusal(folder)


def test_a_tokenizer_of_another_vocabulary(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", vocab_size=60)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((checkpoints("bart", tokenizer=True) / name).read_bytes())
    message = refusal(folder)
    assert "the tokenizer has ids up to" in message
    assert "but vocab_size is 60" in message
