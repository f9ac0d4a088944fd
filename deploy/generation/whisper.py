"""Settings of Whisper: the prompt of language and task, timestamps, and the times of tokens.

Source: transformers 5.24 `WhisperGenerationMixin._retrieve_init_tokens` and `_set_max_new_tokens_and_length`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightbeam.deploy.errors import Fix, GenerationError, Setting
from tightbeam.deploy.generation.fields import TIMES
from tightbeam.deploy.generation.languages import language_token, names_of
from tightbeam.deploy.generation.options import CHOSEN
from tightbeam.deploy.generation.recording import RecordingSettings, read_recording_settings
from tightbeam.deploy.generation.scoring import Scoring, read_scoring
from tightbeam.deploy.generation.settings import Settings
from tightbeam.deploy.generation.timestamps import TimestampRules

__all__ = ["WhisperSettings", "has_timestamps", "read_whisper_settings"]

TASKS = ("transcribe", "translate")
HEADS = "alignment_heads"


@dataclass(frozen=True)
class WhisperSettings:
    """Settings that only Whisper has.

    Attributes
    ----------
    after_start : tuple of int
        Tokens after the start token: language, task, and whether there are timestamps.
    choices : tuple of int
        The languages for the entry `CHOSEN` of ``after_start``.
    timestamps : TimestampRules or None
        The rules of timestamps, if they are asked for.
    times : Scoring or None
        What the times of tokens are made of, if they are asked for.
    recording : RecordingSettings
        Settings of a whole recording.
    """

    after_start: tuple[int, ...]
    choices: tuple[int, ...]
    timestamps: TimestampRules | None
    times: Scoring | None
    recording: RecordingSettings


def read_whisper_settings(settings: Settings, defaults: Mapping[str, Any]) -> WhisperSettings:
    """Read the settings that only Whisper has.

    Without a language, a multilingual model chooses one for each window.

    Parameters
    ----------
    settings : Settings
    defaults : mapping
        The checkpoint's settings.

    Returns
    -------
    WhisperSettings

    Raises
    ------
    GenerationError
        A setting is impossible for this model, or does nothing beside the others.
    """
    after_start, choices = _prompt(settings)
    return WhisperSettings(
        after_start, choices, _timestamps(settings), _times(settings, defaults), read_recording_settings(settings)
    )


def has_timestamps(generation: Mapping[str, Any], vocab_size: int) -> bool:
    """Return True for a checkpoint whose tokens end with timestamps."""
    before = generation.get("no_timestamps_token_id")
    return isinstance(before, int) and before < vocab_size - 1


def _times(settings: Settings, defaults: Mapping[str, Any]) -> Scoring | None:
    """Read the scoring that times of tokens need, if the caller asks for times; a checkpoint cannot ask for them."""
    if not settings[TIMES] or not settings.is_callers(TIMES):
        return None
    if settings.is_callers(HEADS) and settings[HEADS] != defaults.get(HEADS):
        raise settings.error(HEADS, "is another than the checkpoint's, which an export fixes", fix="leave it out")
    scoring = read_scoring(settings, log_probabilities=True)
    if scoring is not None:
        raise settings.error(TIMES, f"does not go with {scoring.asked}", fix="leave one out")
    return Scoring(tokens=True, alternatives=0, normalize=True, times=True)


def _timestamps(settings: Settings) -> TimestampRules | None:
    """The rules of timestamps, if they are asked for."""
    if not settings["return_timestamps"]:
        return None
    without = Fix("pass {}", Setting("return_timestamps", False))
    before, eos = settings["no_timestamps_token_id"], settings["eos_token_id"]
    if before is None:
        raise settings.error(
            "return_timestamps", "needs no_timestamps_token_id, which the checkpoint lacks", fix="pass it"
        )
    if before + 1 >= settings.vocab_size:
        problem = f"needs tokens above no_timestamps_token_id={before}, and this model has none"
        raise settings.error("return_timestamps", problem, fix=without)
    if len(eos) != 1 or eos[0] > before:
        problem = f"needs one eos_token_id below the timestamps, which begin with {before + 1}"
        fix = Fix("pass one, or {}", Setting("return_timestamps", False))
        raise settings.error("return_timestamps", problem, fix=fix)
    return TimestampRules(before + 1, eos[0], settings["max_initial_timestamp_index"])


def _prompt(settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the prompt after its start token, and the languages for the entry `CHOSEN`."""
    language, task = settings["language"], settings["task"]
    asked = next((name for name in ("language", "task") if settings.is_callers(name)), None)
    if settings["is_multilingual"] is False and asked is not None:
        problem = "is for multilingual models, and this one is English-only"
        raise settings.error(asked, problem, fix="leave language and task out")
    languages, tasks = settings["lang_to_id"], settings["task_to_id"]
    prompt: list[int | None] = list(settings["forced_decoder_ids"]) if language is None and task is None else []
    choices: tuple[int, ...] = ()
    if language is not None:
        prompt[:1] = [_language(settings, languages)]
    elif languages and (not prompt or prompt[0] is None):
        choices = tuple(sorted(set(languages.values())))
        prompt[:1] = [CHOSEN]
    if task is not None:
        prompt.append(_task(settings, tasks))
    elif language is not None and "transcribe" in tasks:
        prompt.append(tasks["transcribe"])
    ending = settings["no_timestamps_token_id"]
    if ending is not None:
        if settings["return_timestamps"]:
            prompt = prompt[:-1] if prompt and prompt[-1] == ending else prompt
        elif not prompt or prompt[-1] != ending:
            prompt.append(ending)
    return tuple(token for token in prompt if token is not None), choices


def _language(settings: Settings, languages: Mapping[str, int]) -> int:
    given = settings["language"]
    token = language_token(given, languages) if isinstance(given, str) else None
    if token is None:
        expected = "a language of this model, by its code or name"
        if given == "auto":
            fix = "leave it out, and the model finds the language"
            raise settings.given("language").error(expected=expected, fix=fix)
        raise _not_one_of(settings, "language", expected, names_of(languages))
    return token


def _task(settings: Settings, tasks: Mapping[str, int]) -> int:
    known = [name for name in TASKS if name in tasks]
    if settings["task"] not in known:
        raise _not_one_of(settings, "task", "a task of this model", known)
    return tasks[settings["task"]]


def _not_one_of(settings: Settings, name: str, expected: str, known: list[str]) -> GenerationError:
    fix = f"pass one of {', '.join(known)}" if known else "leave it out, since this model has none"
    return settings.given(name).error(expected=expected, fix=fix)
