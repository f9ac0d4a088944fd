"""Languages by name through export, texts and the command: the tokens of ``generate`` with the ids of their tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import M2M100ForConditionalGeneration, PreTrainedModel, PreTrainedTokenizerFast

from support.checkpoints.edits import edit_json
from support.checkpoints.families import SENTENCES, make_checkpoint, make_tokenizer
from support.commands import process
from tightbeam.deploy import GenerationError, Runner
from tightbeam.export import export_model

LANGUAGES = ("deu_Latn", "eng_Latn", "fra_Latn")
pytestmark = pytest.mark.slow


def save_tokenizer(
    folder: Path, model: PreTrainedModel, languages: tuple[str, ...] = LANGUAGES
) -> PreTrainedTokenizerFast:
    """A tokenizer as NLLB's: the source's language first, the end last."""
    config = model.config
    own = next(name for name in languages if "eng" in name)
    whole = config.vocab_size
    config.vocab_size = whole - len(languages)
    tokenizer = make_tokenizer(config)
    config.vocab_size = whole
    tokenizer.add_special_tokens({"additional_special_tokens": list(languages)})
    special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in (own, "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{own} $A </s>", special_tokens=special)
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


@pytest.mark.parametrize("version", ["", "v2"])
def test_the_target_language_of_seamless_begins_the_output(tmp_path: Path, version: str) -> None:
    """A checkpoint of all tasks, with ``generate(tgt_lang=...)``, whose beams count the language as the beginning."""
    names = ("__eng__", "__deu__", "__cmn_Hant__")
    folder = make_checkpoint(tmp_path / "seamless", f"seamless_m4t{version and '_' + version}")
    model = getattr(transformers, f"SeamlessM4T{version}ForTextToText").from_pretrained(folder).eval()
    tokenizer = save_tokenizer(folder, model, names)
    table = {name.strip("_"): tokenizer.convert_tokens_to_ids(name) for name in names}
    tables = {"text_decoder_lang_to_code_id": table, "t2u_lang_code_to_id": {"eng": 1}}
    edit_json(folder / "generation_config.json", **tables)
    edit_json(folder / "config.json", architectures=[f"SeamlessM4T{version}Model"])
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "vocoder.bias": torch.ones(3)}, folder / "model.safetensors", {"format": "pt"})
    model.generation_config.text_decoder_lang_to_code_id = table
    runner = Runner.load(export_model(folder, output=tmp_path / "bundle").path, threads=1)
    texts, how = [sentence[:30] for sentence in SENTENCES], {"num_beams": 3, "max_new_tokens": 9, "length_penalty": 2.0}
    for target in ("deu", "cmn_Hant"):
        expected = []
        for text in texts:
            rows = torch.tensor([tokenizer(text).input_ids])
            assert rows[0, 0] == table["eng"]
            output = model.generate(rows, tgt_lang=target, **how)
            assert output[0, 1] == table[target]
            expected.append(tokenizer.decode(output[0], skip_special_tokens=True))
        assert runner.generate_text(texts, target_language=target, **how) == expected
    with pytest.raises(GenerationError, match="both name the target"):
        runner.generate_text(texts, target_language="deu", decoder_input_ids=[table["eng"]])
