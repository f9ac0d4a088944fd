"""GGUF files: the weights, the config and the tokens of transformers, and errors of one line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from support.checkpoints.families import SENTENCES
from support.checkpoints.gguf import CONFIGS, SIZES, make_model, write_gguf
from support.commands import Command, caller
from tightbeam.deploy import Runner
from tightbeam.export import ExportError, export_model
from tightbeam.export.checkpoint.gguf_file import checkpoint_of
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.command import main


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", make_model(), kind="Q8_0")


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_weights_and_config_are_those_that_were_written(tmp_path: Path, architecture: str, kind: str) -> None:
    model = make_model(architecture)
    with checkpoint_of(write_gguf(tmp_path / "tiny.gguf", model, architecture, kind)) as folder:
        found = load_checkpoint(folder)
    assert found.name == "tiny"
    written, read = model.state_dict(), found.model.state_dict()
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        expected = tensor if kind == "F32" or tensor.ndim == 1 else tensor.half().float()
        assert read[name].dtype == torch.float32 and torch.equal(read[name], expected), name
    if kind == "F32":
        ids = torch.tensor([[5, 9, 2, 77, 8, 41, 6] * 5])
        assert torch.allclose(found.model(ids).logits, model(ids).logits, atol=1e-5)  # the config too
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")
    assert all(getattr(found.config, name) == getattr(model.config, name) for name in names)
    assert not Path(folder).exists()


def test_tokens_are_those_of_transformers(file: Path, tmp_path: Path) -> None:
    """Of a file with quantized matrices, its tokenizer included."""
    bundle = export_model(file, tmp_path / "out")
    assert bundle.manifest.parity is not None and bundle.manifest.parity.tokens > 50
    assert bundle.manifest.model == "tiny"
    runner = Runner.load(tmp_path / "out", threads=1)
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    for text in (*SENTENCES[:3], "<|begin|>two\nlines\n"):
        ids = tokenizer(text).input_ids
        assert runner.encode(text)[0] == ids and ids[0] == 0
        for settings in ({"num_beams": 1}, {"num_beams": 3}):
            how: dict[str, Any] = {**settings, "max_new_tokens": 12, "do_sample": False}
            expected = model.generate(torch.tensor([ids]), **how, eos_token_id=1, pad_token_id=1)[0].tolist()
            assert runner.generate([ids], **how).sequences[0].tolist() == expected
            text_of = tokenizer.decode(expected[len(ids) :], skip_special_tokens=True)
            assert runner.generate_text([text], **how) == [text_of]

    long, length = " ".join(SENTENCES), 128 - 12
    expected = AutoTokenizer.from_pretrained(**where, truncation_side="left")(long, truncation=True, max_length=length)
    tokens, cut = runner.encode(long, truncate=True, max_new_tokens=12)
    assert cut > 0 and tokens == expected.input_ids and tokens[0] == 0


def test_dry_run_and_a_file_without_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call: Command = caller(monkeypatch, capsys)
    file = write_gguf(tmp_path / "bare.gguf", make_model(), tokenizer=False)
    done = call(file, "--dry-run", entry=main)
    assert done.code == 0 and "bare, llama: 1 decoder layers, 64 wide, 4 heads" in done.out
    with checkpoint_of(file) as folder:
        found = load_checkpoint(folder)
    assert found.tokenizer is None and found.config.eos_token_id is None


def refusal(path: Path) -> str:
    with pytest.raises(ExportError) as caught, checkpoint_of(path) as folder:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_refused_files(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file; give a .gguf file" in refusal(tmp_path / "none.gguf")
    model = make_model()
    for name, value in {"rope.scaling.type": "yarn", "expert_count": 8, "attention.sliding_window": 64}.items():
        other = write_gguf(tmp_path / "other.gguf", model, **{name: value})
        assert f"llama.{name} changes what the model says, and transformers does not read it" in refusal(other)
    scaled = write_gguf(tmp_path / "scaled.gguf", model, **{"rope.scaling.type": "none", "expert_count": 0})
    with checkpoint_of(scaled) as folder:
        assert load_checkpoint(folder).sizes.decoder_only
    biased = make_model(config=LlamaConfig(**SIZES, attention_bias=True))
    other = write_gguf(tmp_path / "other.gguf", biased)
    assert "blk.0.attn_q.bias changes what the model says" in refusal(other)
    other = write_gguf(tmp_path / "other.gguf", model, "gemma2")
    assert "the architecture of this file is 'gemma2', and llama, qwen2, qwen3 are read" in refusal(other)

    data = file.read_bytes()
    for place, content in enumerate((b"", b"GGUF", data[:1000], b"PK\3\4" + data[4:], data[:-5000], b"\0" * 100)):
        damaged = tmp_path / f"damaged-{place}.gguf"
        damaged.write_bytes(content)
        assert refusal(damaged).startswith(str(damaged))

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = refusal(file)
    assert (
        "reading GGUF needs the package gguf, which is not installed; pip install 'tightbeam[export,gguf]'" in message
    )
    assert f'save_pretrained("{file.stem}")' in message
