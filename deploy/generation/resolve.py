"""Settings of the checkpoint and of a caller, resolved to the options of a generation.

`resolve_settings` checks everything that depends on the settings alone, once. `ResolvedSettings` adds
the lengths of one prompt, or the beginning of one window of a recording.

Source: transformers 5.24 `GenerationConfig` and the preparation in `GenerationMixin.generate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from tightbeam.deploy.errors import Fix, GenerationError, Setting
from tightbeam.deploy.generation.combinations import check_beginning, check_combinations
from tightbeam.deploy.generation.confidence import Measured
from tightbeam.deploy.generation.fields import FIELDS, LIMITS, ModelKind
from tightbeam.deploy.generation.layers import CHECKPOINT, Layer, caller_layers
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.recording import WindowStart, read_vad
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.generation.scoring import MOST_ALTERNATIVES, read_scoring
from tightbeam.deploy.generation.settings import Settings
from tightbeam.deploy.generation.spoken_language import PROMPTS, spoken_layers
from tightbeam.deploy.generation.translation import LANGUAGES, translation_layers
from tightbeam.deploy.generation.whisper import WhisperSettings, read_whisper_settings

__all__ = ["DEFAULT_NEW_TOKENS", "ResolvedSettings", "Sizes", "resolve_settings"]

DEFAULT_NEW_TOKENS = 20
"""New tokens of transformers if no length is set."""
LARGEST_EXPONENT = 90
"""Largest power of 2 that divides a score by its length: 1e9 times it is a float32 still."""


class Sizes(Protocol):
    """The sizes of a model that its settings depend on (`ModelSizes`)."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def max_target(self) -> int: ...
    @property
    def decoder_only(self) -> bool: ...


def resolve_settings(
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    sizes: Sizes,
    *,
    speech: bool,
    whole_recordings: bool = False,
) -> ResolvedSettings:
    """Resolve settings, as transformers does.

    Parameters
    ----------
    defaults, given : mapping
        The checkpoint's settings and the caller's, by transformers' field names.
    sizes : Sizes
    speech : bool
        True for a speech model with windows (Whisper).
    whole_recordings : bool
        True for a speech model that takes whole recordings.

    Returns
    -------
    ResolvedSettings

    Raises
    ------
    GenerationError
        A setting is unknown, not supported, or impossible.
    """
    given_layers = [Layer(CHECKPOINT, defaults), *caller_layers(given)]
    if speech:
        settings = Settings(given_layers, ModelKind.WHISPER, sizes.vocabulary, sizes.max_target)
        return ResolvedSettings(settings, sizes, read_whisper_settings(settings, defaults))
    if LANGUAGES in defaults:
        given_layers = translation_layers(given_layers)
    if PROMPTS in defaults:
        given_layers = spoken_layers(given_layers)
    kind = ModelKind.RECORDING if whole_recordings else ModelKind.TEXT
    return ResolvedSettings(Settings(given_layers, kind, sizes.vocabulary, sizes.max_target), sizes)


class ResolvedSettings:
    """Settings that are checked, for prompts of any length or windows of a recording.

    Parameters
    ----------
    settings : Settings
    sizes : Sizes
    whisper : WhisperSettings, optional
        The settings that only Whisper has.

    Raises
    ------
    GenerationError
        Settings contradict each other, or leave no place for a new token.
    """

    def __init__(self, settings: Settings, sizes: Sizes, whisper: WhisperSettings | None = None) -> None:
        self._settings, self._whisper, self._positions = settings, whisper, sizes.max_target
        self._start = None if sizes.decoder_only else _start_token(settings)
        self._searches = {0.0: self._search(0.0)}
        self._only: GenerationOptions | None = None  # the options if they do not depend on prompts
        if whisper is not None:
            self._searches |= {temperature: self._search(temperature) for temperature in settings["temperature"]}
            self._only = self._with_window(WindowStart())
        elif self._start is not None:
            self._only = self._with_start(self._start)
        elif "decoder_input_ids" in settings:
            fix = "pass the whole prompt as the input"
            raise settings.error("decoder_input_ids", "is for models with an encoder", fix=fix)
        elif settings["draft_ids"]:
            raise settings.error("draft_ids", "is for models with an encoder", fix="leave it out")

    def for_prompt(self, length: int) -> GenerationOptions:
        """Return the options for prompts of a decoder-only model.

        Parameters
        ----------
        length : int
            Tokens of each prompt, padding included. It does not matter to a model with an encoder.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            The prompts leave too few of the model's positions.
        """
        return self._only or self._with_lengths(self._searches[0.0], (), length)

    def for_window(self, window: WindowStart) -> GenerationOptions:
        """Return the options for one window of a recording.

        Parameters
        ----------
        window : WindowStart
            What the window begins with.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            The window's beginning leaves too few of the model's positions.
        """
        options = self._with_window(window)
        recording = options.recording
        if recording is None or not recording.measures:
            return options
        no_speech = None if recording.no_speech_threshold is None else recording.no_speech
        return replace(options, measured=Measured(len(window.before), no_speech))

    @property
    def limits_length(self) -> bool:
        """True if the checkpoint or the caller limits the length."""
        return any(name in self._settings for name in LIMITS)

    def _search(self, temperature: float) -> GenerationOptions:
        """The search without lengths and a prompt, at one of Whisper's temperatures; 0.0 changes nothing."""
        search = _search(self._settings, temperature)
        check_combinations(self._settings, search)
        if self._whisper is None:
            return replace(search, vad=read_vad(self._settings))
        own = self._whisper
        return replace(
            search,
            choices=own.choices,
            timestamps=own.timestamps,
            recording=own.recording,
            scoring=own.times or search.scoring,
        )

    def _with_start(self, start: int) -> GenerationOptions:
        """The search of rows that begin with the start token, and with ``decoder_input_ids`` behind it."""
        tokens = self._settings["decoder_input_ids"]
        given = tokens[1:] if tokens[:1] == (start,) else tokens
        search, draft = self._searches[0.0], self._settings["draft_ids"]
        options = self._with_lengths(search, (start, *given), 1 + len(given), given=len(given), draft=draft)
        check_beginning(self._settings, options.prompt[options.root :] if given else ())
        return options

    def _with_window(self, window: WindowStart) -> GenerationOptions:
        """The search of rows that begin with a window's tokens, the language and the task."""
        assert self._whisper is not None and self._start is not None
        prompt = (*window.before, self._start, *self._whisper.after_start)
        longest = self._settings["max_length"] if window.longest is None else window.longest
        if longest is not None:  # it does not count the prompt, up to half of the positions
            longest = min(longest + min(self._positions // 2 - 1, len(prompt)), self._positions)
        draft = self._settings["draft_ids"] if window.draft is None else window.draft
        search = self._searches[window.temperature]
        return self._with_lengths(search, prompt, len(prompt), longest=longest, draft=draft)

    def _with_lengths(
        self,
        search: GenerationOptions,
        prompt: tuple[int, ...],
        beginning: int,
        *,
        longest: int | None = None,
        given: int = 0,
        draft: tuple[int, ...] = (),
    ) -> GenerationOptions:
        """A search of rows that begin with so many tokens. ``longest`` takes the place of ``max_length``."""
        settings = self._settings
        longest = settings["max_length"] if longest is None else longest
        if beginning > 1 and beginning >= self._positions:
            raise _no_position(settings, beginning, self._positions)
        max_length = _max_length(settings, self._positions, beginning, longest)
        if abs(search.length_penalty) * math.log2(max_length) > LARGEST_EXPONENT:
            problem = "leaves the range of float32 at the longest length"
            raise settings.error("length_penalty", problem, fix="pass one nearer to 0")
        options = replace(
            search,
            prompt=prompt,
            beginning=beginning,
            given=given,
            draft=draft,
            max_length=max_length,
            min_length=_min_length(settings, beginning),
            limited_by="max_new_tokens" if "max_new_tokens" in settings else "max_length" if longest else "",
        )
        _check_alternatives(settings, options)
        return options


def _check_alternatives(settings: Settings, options: GenerationOptions) -> None:
    """Raise GenerationError if a search would hold too many alternatives."""
    if options.alternatives <= MOST_ALTERNATIVES:
        return
    new, beams = options.max_length - options.beginning, options.num_beams
    problem = f"for {new:,} new tokens of {beams:,} sequences is more than {MOST_ALTERNATIVES:,} in all"
    most = MOST_ALTERNATIVES // (new * beams)
    fix = f"pass {most} or less, or fewer tokens" if most else "pass fewer tokens"
    raise settings.error("return_alternatives", problem, fix=fix)


def _search(settings: Settings, temperature: float) -> GenerationOptions:
    """The search that settings ask for; each of `SAME` is a setting of the same name."""
    sampling, eos, pad = _sampling(settings, temperature), settings["eos_token_id"], settings["pad_token_id"]
    num_beams = 1 if temperature else settings["num_beams"]
    beams, samples_beams = num_beams > 1, sampling is not None and num_beams > 1
    if sampling is not None and beams:
        sampling = sampling.for_beams(len(eos))
    elif sampling is not None:
        num_beams = settings["num_return_sequences"]
    derived: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "num_beams": num_beams,
        "forced_eos_token_ids": settings["forced_eos_token_id"],
        "eos_token_ids": eos,
        "pad_token_id": eos[0] if pad is None and eos else pad,
        # An end token alone is dropped, as in transformers.
        "bad_words_ids": tuple(word for word in settings["bad_words_ids"] if len(word) > 1 or word[0] not in eos),
        "sampling": sampling,
        "scoring": read_scoring(settings, log_probabilities=beams),
        "renormalize": settings["renormalize_logits"] and beams,
        "samples_beams": samples_beams,
    }
    unknown: dict[str, Any] = {"limited_by": "", "min_length": 0, "max_length": 0, "beginning": 0}
    unknown |= {"prompt": (), "choices": ()}
    return GenerationOptions(**{name: settings[name] for name in SAME} | derived | unknown)


SAME = frozenset(own.name for own in fields(GenerationOptions)) & {own.name for own in FIELDS}
"""Options that are settings of the same name, if nothing is derived of them."""


MOST_TOKENS = 1 << 31
"""No vocabulary has so many tokens, so that a larger ``top_k`` keeps no more; it would not fit a column of int64."""


def _sampling(settings: Settings, temperature: float) -> Sampling | None:
    if not temperature and not settings["do_sample"]:
        return None
    warping = {name: settings[name] for name in ("top_k", "top_p", "min_p", "typical_p", "seed")}
    warping["top_k"] = min(warping["top_k"], MOST_TOKENS)
    return Sampling(temperature=temperature or settings["temperature"], **warping)


def _start_token(settings: Settings) -> int:
    start, bos = settings["decoder_start_token_id"], settings["bos_token_id"]
    if start is None and bos is None:
        problem = "decoder_start_token_id is not set, nor is bos_token_id"
        raise GenerationError(problem, fix="pass decoder_start_token_id")
    found: int = bos if start is None else start
    return found


def _no_position(settings: Settings, beginning: int, positions: int) -> GenerationError:
    if "decoder_input_ids" in settings:
        problem = f"leaves none of the model's {positions} positions"
        return settings.error("decoder_input_ids", problem, fix="shorten it")
    problem = f"prompts of {beginning} tokens leave none of the model's {positions} positions"
    return GenerationError(problem, fix="shorten them")


def _max_length(settings: Settings, positions: int, beginning: int, longest: int | None) -> int:
    """The length of rows that begin with ``beginning`` tokens: from max_new_tokens, else ``longest``, else 20 more."""
    name, start, length = "max_length", 0, longest or min(beginning + DEFAULT_NEW_TOKENS, positions)
    if "max_new_tokens" in settings:
        name, start, length = "max_new_tokens", beginning, beginning + settings["max_new_tokens"]
    if length > positions:
        problem = f"makes sequences of {length} tokens, the model has {positions} positions"
        raise settings.error(name, problem, fix=Fix("pass {} or less", Setting(name, positions - start)))
    if length <= beginning:
        counted = "the start token" if beginning == 1 else f"the {beginning} tokens of the prompt"
        fix = f"pass {beginning + 1} or more" + ("" if beginning == 1 else ", or max_new_tokens")
        raise settings.error("max_length", f"leaves no room for a new token, it counts {counted}", fix=fix)
    return length


def _min_length(settings: Settings, beginning: int) -> int:
    """The length before which no row ends: from min_new_tokens, else min_length."""
    least = settings["min_new_tokens"]
    if least is None:
        length: int = settings["min_length"]
        return length
    if least > DEFAULT_NEW_TOKENS and not any(name in settings for name in LIMITS):
        problem = f"is more than the {DEFAULT_NEW_TOKENS} new tokens that are made if no length is set"
        fix = Fix("pass {} or more, too", Setting("max_new_tokens", least))
        raise settings.error("min_new_tokens", problem, fix=fix)
    return beginning + int(least)
