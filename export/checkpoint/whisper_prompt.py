"""The prompt of a multilingual Whisper: the language and the task in its generation config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["lacks_task", "note_of_prompt"]

MULTILINGUAL = 51865
"""Tokens of the smallest published vocabulary of many languages; the English-only one has a token less."""


def note_of_prompt(settings: Mapping[str, Any], vocabulary: int) -> str:
    """Return a note for the user of a multilingual Whisper whose prompt lacks the task or the language, else "".

    Parameters
    ----------
    settings
        The checkpoint's generation settings.
    vocabulary
        Tokens that the model scores.
    """
    lacks = {"lang_to_id": _lacks_language(settings, vocabulary), "task_to_id": lacks_task(settings, vocabulary)}
    if missing := [table for table, is_lacking in lacks.items() if is_lacking and not settings.get(table)]:
        return (
            f"the generation config of this multilingual Whisper has no {' and no '.join(missing)}, so the model "
            "gets no language and task, and may write nonsense, in model.generate too; copy generation_config.json "
            "from the model that it was trained from, and export again"
        )
    if lacks["task_to_id"]:
        return (
            "the generation config of this multilingual Whisper names no task, and without one the model may write "
            "nonsense, in model.generate too; run it with --task transcribe, or --task translate (into English)"
        )
    return ""


def lacks_task(settings: Mapping[str, Any], vocabulary: int) -> bool:
    """Return whether a multilingual model generates without a task.

    transformers takes the task that is named; with a language alone, it transcribes; with neither, it takes the prompt
    of ``forced_decoder_ids``, the older form.
    """
    tasks = (settings.get("task_to_id") or {}).values()
    if settings.get("task") is not None or not _is_multilingual(settings, vocabulary):
        return False
    if settings.get("language") is not None:
        return not tasks
    forced = _forced(settings)[1:]
    return not any(token in tasks for token in forced) if tasks else not forced


def _lacks_language(settings: Mapping[str, Any], vocabulary: int) -> bool:
    """Return whether a multilingual model neither gets a language nor has languages to choose from."""
    named = settings.get("language") is not None or _forced(settings)[:1] not in ([], [None])
    return _is_multilingual(settings, vocabulary) and not named and not settings.get("lang_to_id")


def _is_multilingual(settings: Mapping[str, Any], vocabulary: int) -> bool:
    return bool(settings.get("is_multilingual", bool(settings.get("lang_to_id")) or vocabulary >= MULTILINGUAL))


def _forced(settings: Mapping[str, Any]) -> list[int | None]:
    """Return the tokens of ``forced_decoder_ids``: language (None if the model detects it), task, and others."""
    return [token for _, token in settings.get("forced_decoder_ids") or []]
