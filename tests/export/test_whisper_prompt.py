"""The note of an export whose Whisper is told no task or no language, against the prompts that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from support.checkpoints.families import WHISPER_GENERATION, CheckpointCache
from support.commands import caller
from tightbeam.deploy import Bundle
from tightbeam.export.checkpoint.whisper_prompt import MULTILINGUAL, lacks_task, note_of_prompt
from tightbeam.export.command import main as export_main

LANGUAGES, TASKS = set(WHISPER_GENERATION["lang_to_id"].values()), set(WHISPER_GENERATION["task_to_id"].values())
VOCABULARY = 107
OLDER = {"forced_decoder_ids": [[1, None], [2, 93]]}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in WHISPER_GENERATION.items() if name not in names}


CASES: dict[str, dict[str, Any]] = {
    "neither": WHISPER_GENERATION,
    "a task": {**WHISPER_GENERATION, "task": "translate"},
    "a language": {**WHISPER_GENERATION, "language": "de"},
    "the older form": {**WHISPER_GENERATION, **OLDER},
    "the older form with a language alone": {**WHISPER_GENERATION, "forced_decoder_ids": [[1, 91]]},
    "no languages": without("lang_to_id"),
    "no languages, a task": {**without("lang_to_id"), "task": "transcribe"},
    "no tasks": without("task_to_id"),
    "no tasks, a language": {**without("task_to_id"), "language": "de"},
    "no tables": without("lang_to_id", "task_to_id"),
    "no tables, the older form": {**without("lang_to_id", "task_to_id"), **OLDER},
    "no tables, the older form with both": {
        **without("lang_to_id", "task_to_id"),
        "forced_decoder_ids": [[1, 91], [2, 93]],
    },
}


def prompt_of_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The tokens that `generate` begins with."""
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    found: list[torch.Tensor] = []
    retrieve = model._retrieve_init_tokens

    def record(*arguments: Any, **named: Any) -> torch.Tensor:
        found.append(retrieve(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(model, "_retrieve_init_tokens", record)
    model.generate(torch.randn(1, 9, 100), max_new_tokens=1)
    return set(found[0][0].tolist())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_note_says_what_the_prompt_lacks(
    checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    settings = CASES[case]
    prompt = prompt_of_transformers(checkpoints("whisper", generation=settings), monkeypatch)
    note = note_of_prompt(settings, VOCABULARY)
    assert lacks_task(settings, VOCABULARY) == (not prompt & TASKS)
    assert bool(note) == (not prompt & TASKS or not prompt & LANGUAGES)
    can_be_mended = "lang_to_id" in settings and "task_to_id" in settings
    assert ("--task transcribe" in note) == (bool(note) and can_be_mended)
    assert ("copy generation_config.json" in note) == (bool(note) and not can_be_mended)
    for table, tokens in (("lang_to_id", LANGUAGES), ("task_to_id", TASKS)):
        assert (table in note) == (table not in settings and not prompt & tokens)


@pytest.mark.parametrize(
    ("settings", "vocabulary", "is_multilingual"),
    [
        ({"is_multilingual": False}, MULTILINGUAL, False),
        ({}, MULTILINGUAL - 1, False),
        ({}, MULTILINGUAL, True),
        ({"is_multilingual": True}, VOCABULARY, True),
    ],
)
def test_models_of_one_language_need_no_task(settings: dict[str, Any], vocabulary: int, is_multilingual: bool) -> None:
    assert bool(note_of_prompt(settings, vocabulary)) == is_multilingual


def test_the_export_names_the_task(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoints("whisper", generation=WHISPER_GENERATION)
    out = tmp_path / "out"
    done = caller(monkeypatch, capsys)(folder, "-o", out, "--no-check", entry=export_main)
    assert done.code == 0, done.err
    assert f"next     run-model {out} speech.wav --task transcribe\n" in done.out
    assert "note     the generation config of this multilingual Whisper names no task" in done.out
    assert "task" not in Bundle.load(out).manifest.generation  # the tokens stay those of generate
    assert "task" not in json.loads((folder / "generation_config.json").read_text("utf-8"))
