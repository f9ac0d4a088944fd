"""The chat template of an export: the checkpoint's own or the user's, and the special tokens that it names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from support.bundles.chat import LLAMA, SIMPLE
from support.chat_templates import TEMPLATES
from support.checkpoints.families import CheckpointCache
from tightbeam.deploy import Runner
from tightbeam.deploy.chat import template as chat_template
from tightbeam.deploy.chat.template import load_chat_template
from tightbeam.export import ExportError, export_model
from tightbeam.export.checkpoint.chat_template import note_of_chat_template, read_chat_template, set_chat_template
from tightbeam.export.checkpoint.tokenizer import write_tokenizer

TOKENS = {"bos_token": "<s>", "sep_token": "<sep>", "cls_token": "<cls>", "mask_token": "<mask>"}
USER = {"role": "user", "content": "where is the tram"}


@pytest.fixture
def tokenizer(checkpoints: CheckpointCache) -> Any:
    made = AutoTokenizer.from_pretrained(checkpoints(**LLAMA))
    assert isinstance(made, PreTrainedTokenizerFast)
    return made


@pytest.mark.slow
def test_a_template_of_the_users_goes_into_the_bundle(
    checkpoints: CheckpointCache, tokenizer: Any, tmp_path: Path
) -> None:
    (tmp_path / "own.jinja").write_text(SIMPLE, "utf-8")
    checkpoint = checkpoints(**LLAMA)
    bundle = export_model(checkpoint, tmp_path / "bundle", chat_template=tmp_path / "own.jinja", check=False)
    expected = tokenizer.apply_chat_template([USER], chat_template=SIMPLE, add_generation_prompt=True)["input_ids"]
    assert bundle.manifest.tokenizer and bundle.manifest.tokenizer.has_chat_template
    assert Runner.load(bundle.path, threads=1).encode([USER]) == (expected, 0)


@pytest.mark.parametrize("name", ["chatml", {"default": TEMPLATES["chatml"], "rag": "x"}], ids=["one", "named"])
def test_the_bundle_has_the_tokenizers_templates_and_tokens(tokenizer: Any, tmp_path: Path, name: Any) -> None:
    tokenizer.add_special_tokens(TOKENS)
    tokenizer.chat_template = TEMPLATES[name] if isinstance(name, str) else name
    entry = write_tokenizer(tokenizer, tmp_path)
    found = load_chat_template(
        SimpleNamespace(manifest=SimpleNamespace(tokenizer=entry), file=lambda own: tmp_path / own.file)  # type: ignore[arg-type]
    )
    assert found is not None and (found._source, found._variables) == (
        TEMPLATES["chatml"],
        tokenizer.special_tokens_map,
    )
    assert entry is not None and entry.has_chat_template
    assert note_of_chat_template(tokenizer) == ""


def test_there_may_be_no_template(tokenizer: Any) -> None:
    assert note_of_chat_template(None) == note_of_chat_template(tokenizer) == ""
    tokenizer.chat_template = {"rag": "x"}
    assert note_of_chat_template(tokenizer) == ""
    tokenizer.chat_template = "{{ raise_exception('never') }}"  # transformers cannot render it either
    assert note_of_chat_template(tokenizer) == ""


def test_a_note_says_that_a_template_passes_a_limit(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer.chat_template = SIMPLE
    monkeypatch.setattr(chat_template, "MAX_TEMPLATE_BYTES", 9)
    assert note_of_chat_template(tokenizer) == (
        "conversations are not rendered as transformers renders them (the bundle's chat template has more than 9 "
        "bytes); pass texts to this bundle"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory; give a Jinja file"),
        (b"\xff", "cannot be read: it is not UTF-8; give a Jinja file"),
        (b" \n", "is empty; give a Jinja file that writes the messages"),
        (b"{% for %}", r"cannot be used \(TemplateSyntaxError: .*\); mend it"),
    ],
)
def test_a_file_that_is_no_template(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "own.jinja").write_bytes(content)
    with pytest.raises(ExportError, match=f"chat template .*own.jinja {reason}"):
        read_chat_template(tmp_path / "own.jinja")


def test_a_checkpoint_without_a_tokenizer_takes_no_template() -> None:
    with pytest.raises(ExportError, match="--chat-template is for a tokenizer, and the checkpoint has none"):
        set_chat_template(None, SIMPLE)
