"""The trained models of `make zoo`: the tokens of ``generate`` on inputs that they never met, and how good they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from transformers import AutoFeatureExtractor, AutoModelForSeq2SeqLM, AutoTokenizer, LlamaForCausalLM
from transformers import WhisperForConditionalGeneration as WhisperModel

from support.checkpoints.timestamps import generate
from tightbeam.deploy import KeptPrompt, Runner
from tightbeam.export import export_model
from tools.real_check.measures import word_error_rate
from tools.zoo import _recipe
from tools.zoo.llama import LENGTH
from tools.zoo.speech import RATE_HZ

pytestmark = pytest.mark.slow
LLAMA_ANSWERS, LLAMA_PERPLEXITY, MARIAN_EXACT, WORDS_WRONG = 0.5, 150, 0.95, 0.05
"""Shares of exact answers and translations at least; perplexity and share of wrong words at most."""
ENDINGS = (".txt", ".language")
ZOO = Path(__file__).resolve().parents[2] / _recipe.ZOO
Array = Any


def checkpoint(name: str) -> Path:
    """A folder of the zoo; the test is skipped if it is not there."""
    if not (ZOO / name).exists():
        pytest.skip(f"{ZOO / name} is not there: make zoo trains it")
    return ZOO / name


def inputs(name: str, file: str) -> list[str]:
    return (_recipe.inputs_of(ZOO / name) / file).read_text(encoding="utf-8").splitlines()


def exported(name: str, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp(name) / "dedup"
    export_model(checkpoint(name), folder, variant="dedup")
    return Runner.load(folder, threads=1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return exported("llama", tmp_path_factory)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return exported("marian", tmp_path_factory)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return exported("whisper", tmp_path_factory)


def expect_rows(model: Any, runner: Runner, rows: list[list[int]], **search: Any) -> list[list[int]]:
    """Compare rows that run together with transformers, one by one; returns the tokens of each."""
    pad = model.generation_config.pad_token_id
    fill = {pad, *np.ravel(model.generation_config.eos_token_id)}  # beam search takes a padding of 0 for none
    found = runner.generate(rows, **search).sequences.tolist()
    expected = []
    for row, tokens in zip(rows, found, strict=True):
        with torch.no_grad():
            expected.append(model.generate(torch.tensor([row]), do_sample=False, **search)[0].tolist())
        own = expected[-1]
        if len(tokens) > len(own) and not model.config.is_encoder_decoder:  # the prompt is padded at its left
            tokens = tokens[tokens.index(row[0]) :] if tokens[0] == pad else tokens
        assert tokens[: len(own)] == own
        assert set(tokens[len(own) :]) <= fill
    return expected


@pytest.mark.parametrize("beams", [1, 4])
def test_llama_answers_as_generate_does(llama: Runner, beams: int) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint("llama"))
    rows = [llama.encode(line)[0] for line in inputs("llama", "lines.txt")]
    tokens = expect_rows(model, llama, rows, num_beams=beams, max_new_tokens=40)
    texts = [llama.decode(own[len(row) :]) for own, row in zip(tokens, rows, strict=True)]
    answers = inputs("llama", "references.txt")
    assert sum(map(str.__eq__, texts, answers)) >= LLAMA_ANSWERS * len(answers)


@pytest.mark.parametrize("beams", [1, 4])
def test_llama_chats_as_generate_does(llama: Runner, beams: int) -> None:
    """Each turn keeps the turns before it; at the end the model goes on with an answer that is begun."""
    model = LlamaForCausalLM.from_pretrained(checkpoint("llama"))
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint("llama"))
    asked = [re.findall(r"<\|user\|>(.*?)<\|end\|>", line) for line in inputs("llama", "lines.txt")]
    conversations = [questions for questions in asked if len(questions) > 1][:8]
    assert len(conversations) == 8
    settings: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 30}

    def expected(messages: list[dict[str, str]]) -> str:
        continued = messages[-1]["role"] == "assistant"
        how = {"continue_final_message": continued, "add_generation_prompt": not continued}
        prompt = tokenizer.apply_chat_template(messages, return_tensors="pt", **how)["input_ids"]
        assert llama.encode(messages) == (prompt[0].tolist(), 0)
        with torch.no_grad():
            row = model.generate(prompt, do_sample=False, **settings)[0]
        return str(tokenizer.decode(row[prompt.shape[1] :], skip_special_tokens=True))

    for questions in conversations:
        messages, kept = [], KeptPrompt()
        for question in questions:
            messages.append({"role": "user", "content": question})
            answer = expected(messages)
            assert llama.chat(messages, kept=kept, **settings) == answer
            messages.append({"role": "assistant", "content": answer})
        assert kept.reused > 0
        messages[-1]["content"] = messages[-1]["content"][:9]
        assert "".join(llama.stream_text(messages, **settings)) == expected(messages)


@pytest.mark.parametrize("beams", [1, 4])
def test_llama_continues_docstrings_as_generate_does(llama: Runner, beams: int) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint("llama"))
    lines = [line for line in inputs("llama", "text.txt") if len(line) > 50][:24]
    rows = [llama.encode(line)[0][:20] for line in lines]
    expect_rows(model, llama, rows, num_beams=beams, max_new_tokens=60)


def test_llama_has_learned_its_text() -> None:
    folder = checkpoint("llama")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    text = "\n".join(inputs("llama", "text.txt"))
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    windows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    with torch.no_grad():
        loss = LlamaForCausalLM.from_pretrained(folder)(windows, labels=windows).loss
    assert float(loss.exp()) < LLAMA_PERPLEXITY
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Who?"}], tokenize=False, add_generation_prompt=True
    )
    assert asked == "<|user|>Who?<|end|><|assistant|>"


@pytest.mark.parametrize("beams", [1, 4])
def test_marian_translates_as_generate_does(marian: Runner, beams: int) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint("marian"))
    rows = [marian.encode(line)[0] for line in inputs("marian", "lines.txt")]
    tokens = expect_rows(model, marian, rows, num_beams=beams)
    right = inputs("marian", "references.txt")
    assert sum(marian.decode(own) == text for own, text in zip(tokens, right, strict=True)) >= MARIAN_EXACT * len(right)


def recordings(kind: str) -> list[tuple[Array, str, str]]:
    """Samples, text and language of the recordings whose names begin so."""
    checkpoint("whisper")
    return [
        (soundfile.read(path, dtype="float32")[0], *(path.with_suffix(end).read_text().strip() for end in ENDINGS))
        for path in sorted(_recipe.inputs_of(ZOO / "whisper").glob(f"{kind}-*.wav"))
    ]


def features_of(wave: Array) -> torch.Tensor:
    extractor: Any = AutoFeatureExtractor.from_pretrained(checkpoint("whisper"))
    how = {"truncation": False, "padding": "longest"} if len(wave) > extractor.n_samples else {}
    features: torch.Tensor = extractor(wave, sampling_rate=RATE_HZ, return_tensors="pt", **how).input_features
    return features


@pytest.mark.parametrize("settings", [{}, {"num_beams": 5}], ids=["greedy", "beams"])
@pytest.mark.parametrize("kind", ["single", "long"])
def test_whisper_hears_as_generate_does(whisper: Runner, kind: str, settings: dict[str, Any]) -> None:
    """Segments with their times; the language is found. At most one word in twenty is wrong."""
    model = WhisperModel.from_pretrained(checkpoint("whisper"))
    heard = recordings(kind)
    assert len(heard) >= {"single": 24, "long": 4}[kind]
    found = whisper.transcribe_segments([wave for wave, _, _ in heard], batch_size=8, **settings)
    texts: list[str] = []
    for (wave, _, language), segments in zip(heard, found, strict=True):
        features = features_of(wave)
        expected = generate(model, features, return_timestamps=True, return_segments=True, **settings)
        assert [token for segment in segments for token in segment.tokens] == expected["sequences"][0].tolist()
        times = [(float(segment["start"]), float(segment["end"])) for segment in expected["segments"][0]]
        np.testing.assert_allclose([(segment.start_s, segment.end_s) for segment in segments], times, atol=1e-9)
        texts.append(" ".join(segment.text.strip() for segment in segments))
        chosen = model.detect_language(features[..., : 2 * model.config.max_source_positions])
        assert int(chosen) == model.generation_config.lang_to_id[f"<|{language}|>"]
    assert word_error_rate(texts, [text for _, text, _ in heard]) <= WORDS_WRONG


@pytest.mark.parametrize("settings", [{}, {"num_beams": 5}], ids=["greedy", "beams"])
def test_whisper_without_timestamps(whisper: Runner, settings: dict[str, Any]) -> None:
    model = WhisperModel.from_pretrained(checkpoint("whisper"))
    heard = recordings("single")
    features = torch.cat([features_of(wave) for wave, _, _ in heard])
    found = whisper.generate_from_features(features.numpy(), **settings).sequences
    expected = generate(model, features, force_unique_generate_call=True, **settings).numpy()
    np.testing.assert_array_equal(found, expected)
    languages = model.generation_config.lang_to_id
    assert found[:, 1].tolist() == [languages[f"<|{language}|>"] for _, _, language in heard]
    texts = whisper.transcribe([wave for wave, _, _ in heard], **settings)
    assert word_error_rate(texts, [right for _, right, _ in heard]) <= WORDS_WRONG
