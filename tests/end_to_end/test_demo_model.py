"""The demo model in `export/demo` has learned its task, and is the small, plain checkpoint that other tests rely on."""

from __future__ import annotations

import json
import zlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tools.demo import reports as grammar

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "export" / "demo"
FRESH_SEED = 1234  # neither the seed of the printed score nor that of the examples
GRAMMAR_CHECKSUM = 3319134330  # of the first thousand training reports


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForSeq2SeqLM.from_pretrained(DEMO)


def headlines(model: Any, tokenizer: Any, texts: list[str], **search: Any) -> list[str]:
    batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
    with torch.no_grad():
        return list(tokenizer.batch_decode(model.generate(**batch, **search), skip_special_tokens=True))


@pytest.fixture(scope="module")
def fresh() -> list[Any]:
    return list(grammar.generate(FRESH_SEED, 30, held_out=True))


@pytest.fixture(scope="module")
def by_beam(model: Any, tokenizer: Any, fresh: list[Any]) -> list[str]:
    return headlines(model, tokenizer, [report.text for report in fresh])


@pytest.fixture(scope="module")
def by_greedy(model: Any, tokenizer: Any, fresh: list[Any]) -> list[str]:
    return headlines(model, tokenizer, [report.text for report in fresh], num_beams=1)


def test_folder_is_small_and_holds_plain_files() -> None:
    files = {path.name: path.stat().st_size for path in DEMO.iterdir()}
    assert set(files) == {
        "README.md",
        "config.json",
        "examples.txt",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) <= 4 * 2**20


def test_weights_are_float16_in_the_file_and_float32_in_memory(model: Any) -> None:
    with safe_open(DEMO / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 (not a dict)
    assert set(stored.values()) == {torch.float16}
    assert not any("embed_tokens" in name or "lm_head" in name for name in stored), "tied weights are stored once"
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert type(model).__name__ == "BartForConditionalGeneration"


def test_configuration_names_no_path() -> None:
    for path in DEMO.glob("*config.json"):
        assert "_name_or_path" not in json.loads(path.read_text(encoding="utf-8")), path.name


def test_tokenizer_frames_the_text_and_gives_it_back(tokenizer: Any, fresh: list[Any]) -> None:
    assert tokenizer.is_fast
    assert tokenizer.model_max_length == 256
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]) == [0, 1, 2, 3, 4]
    for report in fresh:
        ids = tokenizer(report.text)["input_ids"]
        assert (ids[0], ids[-1]) == (0, 2)
        assert tokenizer.decode(ids, skip_special_tokens=True) == report.text


@pytest.mark.parametrize("text", ["", " ", "Ωμέγα 東京 🦉\t\x07", "no sense at all", "a b, " * 2000, "\ud7ff\uffff"])
def test_any_text_is_encoded_without_unknown_tokens_and_answered(model: Any, tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, truncation=True)["input_ids"]
    assert 3 not in ids
    assert len(ids) <= 256
    assert len(headlines(model, tokenizer, [text])) == 1


def test_facts_are_right_on_fresh_reports(fresh: list[Any], by_beam: list[str]) -> None:
    wrong = [line for line, report in zip(by_beam, fresh, strict=True) if not grammar.facts_right(line, report)]
    assert len(wrong) <= 0.15 * len(fresh), wrong


def test_search_strategy_matters(by_beam: list[str], by_greedy: list[str]) -> None:
    assert by_beam != by_greedy


def test_grammar_is_deterministic() -> None:
    assert grammar.generate(7, 200) == grammar.generate(7, 200)
    assert grammar.generate(7, 200) != grammar.generate(8, 200)
    # The exact reports too: another grammar needs a newly trained model, and then a new checksum.
    assert zlib.crc32(repr(grammar.generate(0, 1000)).encode()) == GRAMMAR_CHECKSUM


def test_fact_check_accepts_every_admissible_headline_and_no_slip() -> None:
    report = grammar.generate(7, 1)[0]
    other = grammar.generate(8, 1)[0]
    for headline in report.headlines:
        assert grammar.facts_right(headline, report)
        assert not grammar.facts_right(headline, other)
        assert not grammar.facts_right(headline.replace(report.facts["where"], report.facts["where"] + "ton"), report)
        assert not grammar.facts_right(headline.replace(report.facts["how many"], "1000"), report)
        assert not grammar.facts_right(f"{headline}, says Nobody Known", report)


def test_examples_are_held_out_of_training() -> None:
    examples = (DEMO / "examples.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(examples)) == 12
    held_out = {report.text: report for report in grammar.generate(2, 100, held_out=True)}
    assert all(grammar.is_held_out(held_out[text].facts) for text in examples)
    trained_on = list(islice(grammar.stream(0), 20_000))
    assert not any(grammar.is_held_out(report.facts) for report in trained_on)
    assert not {report.text for report in trained_on} & set(examples)
