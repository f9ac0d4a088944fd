"""Settings of Whisper: the prompt of language and task, and its part in lengths.

Source: transformers 5.23 `WhisperGenerationMixin._retrieve_init_tokens` and `_set_max_new_tokens_and_length`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.confidence import Measured
from tightbeam.deploy.generation.given import Layer, layers, merged
from tightbeam.deploy.generation.options import CHOSEN, GenerationOptions
from tightbeam.deploy.generation.recording import RECORDING_FIELDS, WindowStart, read_recording_settings
from tightbeam.deploy.generation.resolve_layers import resolve_layers
from tightbeam.deploy.generation.scoring import TIMES, Scoring
from tightbeam.deploy.generation.timestamps import TimestampRules

__all__ = ["has_timestamps", "speech_options"]

TASKS = ("transcribe", "translate")
PROMPT_FIELDS = frozenset(
    """language task is_multilingual lang_to_id task_to_id no_timestamps_token_id forced_decoder_ids return_timestamps
    max_initial_timestamp_index""".split()
)
LATEST_START = "max_initial_timestamp_index"
INERT = frozenset({"alignment_heads", "median_filter_width", "prev_sot_token_id", "return_segments", TIMES})
"""Fields that cannot change a token."""
HEADS = "alignment_heads"
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "do_sample": (False,),
    "decoder_input_ids": (),
    "decoder_input_text": (),
    "num_beam_groups": (1,),
    "force_words_ids": (),
    "num_return_sequences": (1,),  # transformers returns copies of the best one
}


def speech_options(
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    vocab_size: int,
    max_positions: int,
    window: WindowStart | None = None,
) -> GenerationOptions:
    """Resolve the settings of a Whisper checkpoint, with arguments of `options_for` and `resolve_layers`.

    ``language`` is a code such as "en", ``task`` one of `TASKS`. Without a language, a multilingual model chooses one
    for each sample.
    """
    whole = layers(defaults, overrides)
    given = {name: value for name, value in merged(whole).items() if value is not None}
    for name, neutral in UNSUPPORTED.items():
        if name in given and given[name] not in neutral:
            fix = f"pass {name}={neutral[0]!r}" if neutral else f"leave {name} out"
            raise GenerationError(f"{name}={reprlib.repr(given[name])} is not supported for speech; {fix}")
    after_start, choices = _prompt(given, merged(whole[1:]), vocab_size)
    timestamps = _timestamps(given, vocab_size)
    recording = read_recording_settings(whole, vocab_size)
    timed = _asks_for_times(whole)
    own = PROMPT_FIELDS | INERT | UNSUPPORTED.keys() | RECORDING_FIELDS
    plain = [{name: value for name, value in layer.values.items() if name not in own} for layer in whole]
    first, measured, sampled = window or WindowStart(), None, list[Layer]()
    length = given.get("max_length") if first.longest is None else first.longest
    if isinstance(length, int) and "max_new_tokens" not in given:
        # The prompt is added to max_length, limited by the positions.
        prompt = min(max_positions // 2 - 1, len(first.before) + 1 + len(after_start))
        values = next(values for values in reversed(plain) if values.get("max_length") is not None)
        values["max_length"] = min(length + prompt, max_positions) if length >= 1 else length
    if window is not None and recording.measures:
        measured = Measured(
            len(first.before), recording.no_speech if recording.no_speech_threshold is not None else None
        )
    if first.temperature:
        attempt = {"do_sample": True, "temperature": first.temperature, "num_beams": 1, "seed": recording.seed}
        sampled = [Layer("the attempt at this temperature", attempt)]
    options = resolve_layers(
        [*(replace(layer, values=values) for layer, values in zip(whole, plain, strict=True)), *sampled],
        vocab_size=vocab_size,
        max_positions=max_positions,
        before_start=first.before,
        after_start=after_start,
        choices=choices,
        timestamps=timestamps,
    )
    options = replace(options, measured=measured, recording=recording)
    if not timed:
        return options
    if options.scoring is not None:
        raise GenerationError(f"{TIMES}=True does not go with {options.scoring.asked}; leave one out")
    return replace(options, scoring=Scoring(tokens=True, alternatives=0, normalize=True, times=True))


def _asks_for_times(whole: list[Layer]) -> bool:
    """True where the caller asks for times of tokens; the checkpoint cannot, as in transformers."""
    call = merged(whole[1:])
    asked, own = call.get(TIMES), merged(whole[:1]).get(HEADS)
    if asked is not None and not isinstance(asked, bool):
        raise GenerationError(f"{TIMES}={reprlib.repr(asked)} is no choice; pass True or False")
    if asked and call.get(HEADS) not in (None, own):
        raise GenerationError(f"{HEADS} is another than the checkpoint's, which an export fixes; leave it out")
    return bool(asked)


def _timestamps(given: Mapping[str, Any], vocab_size: int) -> TimestampRules | None:
    """The rules of timestamps, where they are asked for."""
    asked = given.get("return_timestamps", False)
    if not isinstance(asked, bool):
        raise GenerationError(f"return_timestamps={reprlib.repr(asked)} is no choice; pass True or False")
    if not asked:
        return None
    before, eos, latest = (given.get(name) for name in ("no_timestamps_token_id", "eos_token_id", LATEST_START))
    if before is None:
        raise GenerationError(
            "return_timestamps=True needs no_timestamps_token_id, which the checkpoint lacks; pass it"
        )
    if before + 1 >= vocab_size:
        raise GenerationError(
            f"return_timestamps=True: no token follows no_timestamps_token_id={before}, so that this model has no "
            "timestamps; pass return_timestamps=False"
        )
    if not isinstance(eos, int) or not 0 <= eos <= before:
        raise GenerationError(
            f"return_timestamps=True with eos_token_id={reprlib.repr(eos)}, expected one token below the timestamps; "
            "pass one, or return_timestamps=False"
        )
    if latest is not None and (not isinstance(latest, int) or isinstance(latest, bool) or latest < 0):
        raise GenerationError(f"{LATEST_START}={reprlib.repr(latest)} is no number of timestamps; pass 0 or more")
    return TimestampRules(before + 1, eos, latest)


def has_timestamps(generation: Mapping[str, Any], vocab_size: int) -> bool:
    """True for a checkpoint whose tokens end with timestamps."""
    before = generation.get("no_timestamps_token_id")
    return isinstance(before, int) and before < vocab_size - 1


def _prompt(given: Mapping[str, Any], call: Mapping[str, Any], vocab_size: int) -> tuple[list[int], list[int]]:
    """Return the prompt after its start token, and the languages for the entry `CHOSEN`."""
    language, task = given.get("language"), given.get("task")
    if given.get("is_multilingual") is False and (call.get("language") is not None or call.get("task") is not None):
        raise GenerationError("language and task are for multilingual models, this one is English-only; leave them out")
    languages = _ids(given, "lang_to_id", vocab_size)
    tasks = _ids(given, "task_to_id", vocab_size)
    forced = _forced(given, vocab_size) if language is None and task is None else []

    prompt: list[int | None] = [*forced]
    choices: list[int] = []
    if language is not None:
        prompt[:1] = [_language(language, languages)]
    elif languages and (not prompt or prompt[0] is None):
        choices = sorted(set(languages.values()))
        prompt[:1] = [CHOSEN]
    if task is not None:
        if task not in TASKS or task not in tasks:
            known = ", ".join(name for name in TASKS if name in tasks) or "none, so leave it out"
            raise GenerationError(f"task={reprlib.repr(task)} is no task of this model; it has {known}")
        prompt.append(tasks[task])
    elif language is not None and "transcribe" in tasks:
        prompt.append(tasks["transcribe"])
    ending = given.get("no_timestamps_token_id")
    if ending is not None:
        _check(ending, "no_timestamps_token_id", vocab_size)
        if given.get("return_timestamps"):
            prompt = prompt[:-1] if prompt and prompt[-1] == ending else prompt
        elif not prompt or prompt[-1] != ending:
            prompt.append(ending)
    return [token for token in prompt if token is not None], choices


def _forced(given: Mapping[str, Any], vocab_size: int) -> list[int | None]:
    """Return the prompt of ``forced_decoder_ids``, the older form: [[1, language or None], [2, task], ...]."""
    pairs = given.get("forced_decoder_ids") or []
    whole = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    if not whole or [pair[0] for pair in pairs] != list(range(1, len(pairs) + 1)):
        raise GenerationError(
            f"forced_decoder_ids={reprlib.repr(pairs)} is no prompt; expected [[1, token], [2, token], ...]"
        )
    for _, token in pairs:
        if token is not None:
            _check(token, "forced_decoder_ids", vocab_size)
    return [token for _, token in pairs]


def _language(language: object, languages: Mapping[str, int]) -> int:
    code = language.lower() if isinstance(language, str) else ""
    for name in (code, f"<|{code}|>"):
        if name in languages:
            return languages[name]
    known = sorted(name.strip("<|>") for name in languages)
    shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "") if known else "none, so leave it out"
    raise GenerationError(f"language={reprlib.repr(language)} is no language code of this model; it has {shown}")


def _ids(given: Mapping[str, Any], name: str, vocab_size: int) -> dict[str, int]:
    table = given.get(name) or {}
    if not isinstance(table, dict):
        raise GenerationError(f"{name}={reprlib.repr(table)} is no table of token ids; restore the generation config")
    for token in table.values():
        _check(token, name, vocab_size)
    return table


def _check(token: object, name: str, vocab_size: int) -> None:
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
        raise GenerationError(
            f"{name} holds {token!r}, outside the vocabulary; expected ids from 0 to {vocab_size - 1}"
        )
