"""Settings of a whole recording, which is gone through window by window: thresholds, second attempts, conditioning.

Source: transformers 5.23 `WhisperGenerationMixin.generate`, whose arguments they are.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.fields import is_number
from tightbeam.deploy.generation.given import Layer, merged
from tightbeam.deploy.generation.sampling import SEEDS

__all__ = ["RECORDING_FIELDS", "RecordingSettings", "WindowStart", "read_recording_settings"]

FIRST, ALL = "first-segment", "all-segments"
THRESHOLDS = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
ASKED_ONLY = frozenset({"temperature", "seed"})
"""Fields that a config has for other reasons; transformers reads them where they are passed by name."""
RECORDING_FIELDS = frozenset({*THRESHOLDS, *ASKED_ONLY, "condition_on_prev_tokens", "prompt_ids"}) | {
    "prompt_condition_type",
    "silence_threshold_db",
    "min_speech_s",
}
"""Settings that only a whole recording follows; the last two are not of transformers."""
DEFAULT_MIN_SPEECH_S = 0.1


@dataclass(frozen=True)
class WindowStart:
    """Beginning of one window of a recording.

    Attributes
    ----------
    before : tuple of int
        Tokens before the start token: those of earlier windows, or a prompt.
    longest : int or None
        ``max_length`` before the tokens of this prompt are added; None is that of the settings.
    temperature : float
        The temperature of sampling; 0 takes the best tokens.
    """

    before: tuple[int, ...] = ()
    longest: int | None = None
    temperature: float = 0.0


@dataclass(frozen=True)
class RecordingSettings:
    """Resolved settings of a recording; the names are those of transformers.

    Attributes
    ----------
    return_timestamps : bool or None
        True and False where somebody asked for it; None leaves it to the length of the recording.
    temperatures : tuple of float
        Those of each attempt at a window; 0 takes the best tokens.
    compression_ratio_threshold, logprob_threshold : float or None
        An attempt of a higher ratio, or of a lower mean log-probability, is followed by the next one.
    no_speech_threshold : float or None
        A window of a lower mean log-probability whose probability of no speech is higher is skipped.
    condition_on_prev_tokens : bool
        Windows begin with the tokens of those before them.
    prompt_ids : tuple of int
        Tokens that the first window begins with, or all of them.
    all_segments : bool
        All windows begin with them, where windows are conditioned.
    prev_sot : int or None
        The token before earlier tokens, ``<|startofprev|>``.
    no_speech : int or None
        The token whose probability is that of no speech.
    silence_threshold_db : float or None
        Level in decibels of full scale that speech is above; None runs all windows.
    min_speech_s : float
        Seconds above that level that a window needs to be run.
    seed : int or None
        Seed of the attempts that sample.
    asked : str
        A setting of the caller that only a whole recording follows; empty without one.
    """

    return_timestamps: bool | None = None
    temperatures: tuple[float, ...] = (0.0,)
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_prev_tokens: bool = False
    prompt_ids: tuple[int, ...] = ()
    all_segments: bool = False
    prev_sot: int | None = None
    no_speech: int | None = None
    silence_threshold_db: float | None = None
    min_speech_s: float = DEFAULT_MIN_SPEECH_S
    seed: int | None = None
    asked: str = ""

    @property
    def measures(self) -> bool:
        """True where decisions need the log-probabilities of tokens."""
        return self.logprob_threshold is not None


def read_recording_settings(layers: Sequence[Layer], vocab_size: int) -> RecordingSettings:
    """Read the settings of a recording from layers, the checkpoint's first.

    Raises
    ------
    GenerationError
        A value is impossible, or does nothing with the others.
    """
    named = merged([layer for layer in layers if layer.asked])
    given = {name: value for name, value in merged(list(layers)).items() if value is not None}
    given = {name: value for name, value in given.items() if name not in ASKED_ONLY or named.get(name) is not None}
    thresholds = {name: _number(given, name) for name in THRESHOLDS}
    temperatures, conditioned = _temperatures(given), _choice(given, "condition_on_prev_tokens")
    asked = [name for name in sorted(RECORDING_FIELDS) if named.get(name) is not None]
    if thresholds["no_speech_threshold"] is not None and thresholds["logprob_threshold"] is None:
        raise GenerationError(
            "no_speech_threshold needs logprob_threshold, as in transformers; pass both, or leave it out"
        )
    for name in ("compression_ratio_threshold", "logprob_threshold"):
        if name in asked and len(temperatures) == 1 and thresholds["no_speech_threshold"] is None:
            raise GenerationError(
                f"{name}={thresholds[name]!r} does nothing with one temperature; pass several, such as "
                "temperature=(0.0, 0.2, 0.4)"
            )
    if "seed" in asked and not any(temperatures):
        raise GenerationError("seed does nothing, since no temperature is above 0; leave it out")
    kind = given.get("prompt_condition_type", FIRST)
    if kind not in (FIRST, ALL):
        raise GenerationError(f"prompt_condition_type={reprlib.repr(kind)} is no choice; pass {FIRST!r} or {ALL!r}")
    if kind == ALL and not conditioned:
        raise GenerationError(
            f"prompt_condition_type={ALL!r} does nothing alone; pass condition_on_prev_tokens=True too"
        )
    silence, least = _number(given, "silence_threshold_db"), _number(given, "min_speech_s")
    if silence is not None and silence >= 0:
        raise GenerationError(f"silence_threshold_db={silence} is not below 0, full scale; pass a level such as -45")
    if least is not None and silence is None:
        raise GenerationError("min_speech_s does nothing without silence_threshold_db; pass both, or leave it out")
    if least is not None and least < 0:
        raise GenerationError(f"min_speech_s={least} is below 0; pass seconds such as {DEFAULT_MIN_SPEECH_S}")
    before = given.get("no_timestamps_token_id")
    return RecordingSettings(
        return_timestamps=named.get("return_timestamps"),
        temperatures=temperatures,
        **thresholds,
        condition_on_prev_tokens=conditioned,
        prompt_ids=_prompt_ids(given, vocab_size),
        all_segments=kind == ALL,
        prev_sot=_prev_sot(given),
        no_speech=before - 1 if isinstance(before, int) and before > 0 else None,
        silence_threshold_db=silence,
        min_speech_s=DEFAULT_MIN_SPEECH_S if least is None else least,
        seed=_seed(given),
        asked=asked[0] if asked else "",
    )


def _temperatures(given: Mapping[str, Any]) -> tuple[float, ...]:
    value = given.get("temperature", 0.0)
    each = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not each or not all(is_number(one, Real) and 0 <= one < 1e30 for one in each):
        raise GenerationError(
            f"temperature={reprlib.repr(value)} is no temperature; pass 0, or one for each attempt, such as "
            "temperature=(0.0, 0.2, 0.4)"
        )
    if any(0 < one < 1e-30 for one in each):
        raise GenerationError(f"temperature={reprlib.repr(value)} is too near to 0; pass 0")
    return tuple(map(float, each))


def _number(given: Mapping[str, Any], name: str) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if not is_number(value, Real) or math.isnan(value):
        raise GenerationError(f"{name}={reprlib.repr(value)} is no number; pass one, or leave it out")
    return float(value)


def _choice(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise GenerationError(f"{name}={reprlib.repr(value)} is no choice; pass True or False")
    return value


def _prompt_ids(given: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    value = given.get("prompt_ids", ())
    tokens = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(tokens, list | tuple) or not all(_is_token(token, vocab_size) for token in tokens):
        raise GenerationError(
            f"prompt_ids={reprlib.repr(value)} is no list of token ids from 0 to {vocab_size - 1}; pass those of "
            "WhisperProcessor.get_prompt_ids"
        )
    return tuple(map(int, tokens))


def _is_token(token: Any, vocab_size: int) -> bool:
    return is_number(token, Integral) and 0 <= token < vocab_size


def _prev_sot(given: Mapping[str, Any]) -> int | None:
    """The token ``<|startofprev|>``; old checkpoints have it as the last but one of ``suppress_tokens``."""
    suppressed = given.get("suppress_tokens") or ()
    token = given.get(
        "prev_sot_token_id", suppressed[-2] if isinstance(suppressed, list) and len(suppressed) > 1 else None
    )
    return token if isinstance(token, int) else None


def _seed(given: Mapping[str, Any]) -> int | None:
    seed = given.get("seed")
    if seed is not None and not (is_number(seed, Integral) and 0 <= seed < SEEDS):
        raise GenerationError(f"seed={reprlib.repr(seed)} is no integer from 0 to {SEEDS - 1}; pass one")
    return None if seed is None else int(seed)
