"""Languages by name through export, texts and the command: the tokens of ``generate`` with the ids of their tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import M2M100ForConditionalGeneration, PreTrainedTokenizerFast

from support.checkpoints.families import SENTENCES, make_checkpoint, make_tokenizer
from support.commands import process
from tightbeam.deploy import GenerationError, Runner
from tightbeam.export import export_model

LANGUAGES = ("deu_Latn", "eng_Latn", "fra_Latn")
pytestmark = pytest.mark.slow


def save_tokenizer(folder: Path, model: M2M100ForConditionalGeneration) -> PreTrainedTokenizerFast:
    """A tokenizer as NLLB's: the source's language first, the end last."""
    config = model.config
    whole = config.vocab_size
    config.vocab_size = whole - len(LANGUAGES)
    tokenizer = make_tokenizer(config)
    config.vocab_size = whole
    tokenizer.add_special_tokens({"additional_special_tokens": list(LANGUAGES)})
    special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("eng_Latn", "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="eng_Latn $A </s>", special_tokens=special)
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_texts_between_languages(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "nllb", "m2m_100")
    model = M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = save_tokenizer(folder, model)
    bundle = export_model(folder, variant="dedup", output=tmp_path / "bundle").path
    runner = Runner.load(bundle, threads=1)
    texts = [sentence[:30] for sentence in SENTENCES]
    found = set()
    for source, target in (("eng_Latn", "deu_Latn"), ("fra_Latn", "eng_Latn")):
        own, into = (tokenizer.convert_tokens_to_ids(name) for name in (source, target))
        settings = {"num_beams": 3, "max_new_tokens": 12}
        expected = []
        for text in texts:
            ids = tokenizer(text).input_ids
            assert ids[0] == tokenizer.convert_tokens_to_ids("eng_Latn")
            rows = torch.tensor([[own, *ids[1:]]])
            output = model.generate(rows, forced_bos_token_id=into, **settings)
            assert output[0, 1] == into
            expected.append(tokenizer.decode(output[0], skip_special_tokens=True))
        named = {"source_language": source, "target_language": target}
        assert runner.generate_text(texts, **named, **settings) == expected
        found.add(tuple(expected))
        lines = tmp_path / "lines.jsonl"
        lines.write_text("".join(json.dumps({"text": text, **named}) + "\n" for text in texts))
        done = process(bundle, lines, "--json-input", "text", "--num-beams", "3", "--max-new-tokens", "12").succeeded()
        assert done.out.splitlines() == expected
    assert len(found) == 2
    pytest.importorskip("py3langid")
    for source, text in (("eng_Latn", "where is the bridge of this town"), ("fra_Latn", "bonjour tout le monde")):
        how = {"target_language": "deu_Latn", "num_beams": 3, "max_new_tokens": 12}
        named, auto = (runner.generate_text([text], source_language=name, **how) for name in (source, "auto"))
        assert named == auto and runner.encode(text, source_language="auto") == runner.encode(
            text, source_language=source
        )
    with pytest.raises(GenerationError, match="is for texts"):
        runner.generate([[5, 6, 2]], source_language="fra_Latn")
