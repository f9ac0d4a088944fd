"""Real inputs in the form that torch and a bundle both take, and the settings that both generate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import transformers

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files.audio import read_audio
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tools.real_check.inputs import CheckError, RealInputs, Recording

__all__ = ["BEAMS", "GREEDY", "SAMPLING", "SETTINGS", "Scored", "Task", "scores_of", "task_of"]

Rows = Sequence[Any]
GREEDY, BEAMS, SAMPLING = "greedy", "4 beams", "sampling"
SETTINGS: dict[str, dict[str, Any]] = {
    GREEDY: {"num_beams": 1, "do_sample": False, "num_return_sequences": 1},
    BEAMS: {"num_beams": 4, "do_sample": False, "num_return_sequences": 1},
    SAMPLING: {"num_beams": 1, "do_sample": True, "num_return_sequences": 1},
}
"""Settings of ``model.generate`` by name; sampling takes the same draws on both sides."""
NEW_TOKENS = 64
"""New tokens of a line, at most."""
CONTEXT, WINDOW, MOST_WINDOWS = 32, 96, 32
"""Tokens of a window of running text that are given, and that are scored; and the windows."""


@dataclass(frozen=True)
class Scored:
    """Tokens whose log-probabilities are asked for, given a source and the tokens before them.

    Attributes
    ----------
    rows : sequence
        The source or prompt of each text: token ids, or features float32 [mels, frames].
    forced : list of list of int
        The tokens that follow it.
    given : int
        The first so many of them are given, and not scored.
    """

    rows: Rows
    forced: list[list[int]]
    given: int = 0


@dataclass(frozen=True)
class Task:
    """What a checkpoint is tried on.

    Attributes
    ----------
    rows : sequence
        Token ids of each line; of a speech model features float32 [mels, frames] of each recording of a window.
    references : sequence of str
        The expected output of each row; empty if none are known.
    languages : sequence of str
        The language of each row's recording, "" if it is not known; empty for text.
    settings : dict
        Settings of ``model.generate`` that every run has.
    windows : sequence of float32 [n]
        The recording of each row, with silence behind it up to a whole window; empty for text.
    waves : sequence of float32 [n]
        Recordings that are gone through by timestamps: those of more than a window, and a few of one.
    waves_said : sequence of str
        Their transcriptions.
    scored : Scored or None
        None if there is nothing to measure a perplexity on.
    """

    checkpoint: Checkpoint
    rows: Rows
    references: Sequence[str]
    settings: dict[str, Any]
    scored: Scored | None
    languages: Sequence[str] = ()
    windows: Sequence[Array] = ()
    waves: Sequence[Array] = ()
    waves_said: Sequence[str] = ()

    @property
    def is_speech(self) -> bool:
        """True if the rows are features."""
        return self.checkpoint.family.is_speech

    @property
    def names(self) -> tuple[str, ...]:
        """The settings that its sequences are generated under; a bundle samples from no speech model."""
        return tuple(name for name in SETTINGS if not (self.is_speech and name == SAMPLING))

    @property
    def start(self) -> int:
        """The token that every output of a model with an encoder begins with."""
        generation = self.checkpoint.generation_config
        return int(generation.get("decoder_start_token_id", generation.get("bos_token_id", 0)))

    @property
    def ends(self) -> list[int]:
        """The tokens that end an output."""
        ends = self.checkpoint.generation_config.get("eos_token_id")
        return ends if isinstance(ends, list) else [] if ends is None else [ends]

    @property
    def decoder_only(self) -> bool:
        """True if the rows are prompts."""
        return self.checkpoint.sizes.decoder_only


def task_of(checkpoint: Checkpoint, inputs: RealInputs) -> Task:
    """Make the task of a checkpoint.

    Raises
    ------
    CheckError
        The inputs do not suit the checkpoint.
    """
    if checkpoint.family.reads_images or (checkpoint.family.is_speech and not checkpoint.family.has_windows):
        raise CheckError(
            f"{checkpoint.name} reads {'images' if checkpoint.family.reads_images else 'whole recordings'}; "
            "expected a model of texts or of windows of sound; use export-model, whose check compares it with torch"
        )
    return _speech(checkpoint, inputs) if checkpoint.family.is_speech else _text(checkpoint, inputs)


def scores_of(task: Task, distributions: Sequence[Array]) -> list[Array]:
    """Log-probabilities [T] of the scored tokens of each text, out of those of all tokens [T, vocabulary]."""
    if task.scored is None:
        return []
    rows = [row[task.scored.given :] for row in task.scored.forced]
    return [found[np.arange(len(row)), row] for row, found in zip(rows, distributions, strict=True)]


def _text(checkpoint: Checkpoint, inputs: RealInputs) -> Task:
    if not inputs.lines:
        raise CheckError(f"{inputs.folder} has no lines.txt, which a model of texts needs; write texts, one a line")
    if checkpoint.tokenizer is None:
        raise CheckError(f"{checkpoint.path} has no tokenizer to read lines.txt with; add its files")
    rows = [_encoded(checkpoint, line) for line in inputs.lines]
    sizes, longest = checkpoint.sizes, max(map(len, rows))
    room = sizes.max_target - longest if sizes.decoder_only else sizes.max_target - 1
    if longest > sizes.max_source or room < 1:
        number = max(range(len(rows)), key=lambda index: len(rows[index])) + 1
        raise CheckError(
            f"{inputs.folder / 'lines.txt'}, line {number} has {longest} tokens, and the model {sizes.max_source} "
            "positions; shorten it"
        )
    own = checkpoint.generation_config.get("max_new_tokens") or NEW_TOKENS
    settings = {"max_new_tokens": min(room, NEW_TOKENS, own)}
    scored = None
    if sizes.decoder_only and inputs.text:
        scored = _windows(_encoded(checkpoint, inputs.text), min(sizes.max_target, CONTEXT + WINDOW))
    elif not sizes.decoder_only and inputs.references:
        with quiet_transformers():
            wanted = [checkpoint.tokenizer(text_target=text, verbose=False).input_ids for text in inputs.references]
        scored = Scored(rows, [list(ids)[: sizes.max_target - 1] for ids in wanted])
    return Task(checkpoint, rows, inputs.references, settings, scored)


def _encoded(checkpoint: Checkpoint, text: str) -> list[int]:
    with quiet_transformers():
        return list(checkpoint.tokenizer(text, verbose=False).input_ids)  # type: ignore[misc]


def _windows(ids: list[int], length: int) -> Scored | None:
    """Windows of running text, a third of each given."""
    given = length // 3
    starts = range(0, len(ids) - length + 1, length - given)[:MOST_WINDOWS]
    cut = [ids[start : start + length] for start in starts]
    return Scored([row[:given] for row in cut], [row[given:] for row in cut]) if cut else None


SEGMENTED = 4
"""Recordings of one window that are gone through by timestamps, too."""


def _speech(checkpoint: Checkpoint, inputs: RealInputs) -> Task:
    if not inputs.recordings:
        raise CheckError(f"{inputs.folder} has no recordings, which a speech model needs; add NAME.wav and NAME.txt")
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint.path, local_files_only=True)
    try:
        waves = [read_audio(str(recording.path), extractor.sampling_rate) for recording in inputs.recordings]
    except InputError as error:
        raise CheckError(str(error)) from error
    each = list(zip(inputs.recordings, waves, strict=True))
    short = [(recording, wave) for recording, wave in each if len(wave) <= extractor.n_samples]
    whole = [(recording, wave) for recording, wave in each if len(wave) > extractor.n_samples]
    if not short:
        raise CheckError(f"{inputs.folder} has no recording of at most {extractor.chunk_length} s; add one")
    rows = extractor([wave for _, wave in short], sampling_rate=extractor.sampling_rate, return_tensors="np")
    generation = checkpoint.generation_config
    settings: dict[str, Any] = {"task": "transcribe"} if generation.get("task_to_id") else {}
    settings["max_new_tokens"] = min(NEW_TOKENS, checkpoint.sizes.max_target // 2)
    segmented = [*whole, *short[:SEGMENTED]]
    return Task(
        checkpoint,
        list(rows.input_features),
        [recording.text for recording, _ in short],
        settings,
        _transcriptions(checkpoint, list(rows.input_features), [recording for recording, _ in short]),
        [recording.language for recording, _ in short],
        [np.pad(wave, (0, extractor.n_samples - len(wave))) for _, wave in short],
        [wave for _, wave in segmented],
        [recording.text for recording, _ in segmented],
    )


def _transcriptions(checkpoint: Checkpoint, rows: Rows, recordings: Sequence[Recording]) -> Scored | None:
    """The transcriptions as forced tokens; None without a tokenizer, or if a language is unknown."""
    generation = checkpoint.generation_config
    languages = generation.get("lang_to_id") or {}
    tokens = [languages.get(f"<|{recording.language}|>") for recording in recordings]
    if checkpoint.tokenizer is None or (languages and None in tokens):
        return None
    prompts = [[token, generation["task_to_id"]["transcribe"]] if languages else [] for token in tokens]
    quiet = [generation["no_timestamps_token_id"]] if "no_timestamps_token_id" in generation else []
    end = generation["eos_token_id"]
    texts = [
        list(checkpoint.tokenizer(f" {recording.text}", add_special_tokens=False).input_ids) for recording in recordings
    ]
    forced = [[*prompt, *quiet, *text, end] for prompt, text in zip(prompts, texts, strict=True)]
    return Scored(rows, forced, len(prompts[0]) + len(quiet))
