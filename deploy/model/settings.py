"""The settings that a loaded model runs with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakMethod

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import GenerationError, NoEffectWarning
from tightbeam.deploy.generation.fields import ATTENTION, TIMES
from tightbeam.deploy.generation.layers import Layer, caller_layers, merged, settings_of
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.recording import WindowStart
from tightbeam.deploy.generation.resolve import ResolvedSettings, resolve_settings
from tightbeam.deploy.generation.settings_cache import SettingsCache
from tightbeam.deploy.generation.stop_strings import StopStrings
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.text.text_settings import BEGINNING, HOTWORDS, PROMPT, with_token_ids
from tightbeam.deploy.text.tokenizer import TextCodec

__all__ = ["ModelSettings"]


class ModelSettings:
    """Resolves settings over the defaults of a loaded model, and checks them against its sizes and its runtime.

    Parameters
    ----------
    manifest : Manifest
        The bundle's manifest, for defaults and sizes.
    runtime : Runtime
        The runtime, which names what it does not support.
    codec : TextCodec or None
        The tokenizer, for settings that are texts; None for a bundle without a tokenizer.
    is_donut : bool
        True for Donut, whose ``decoder_input_ids`` come without a start token.
    """

    def __init__(self, manifest: Manifest, runtime: Runtime, codec: TextCodec | None, *, is_donut: bool) -> None:
        self._manifest, self._runtime, self._codec, self._is_donut = manifest, runtime, codec, is_donut
        resolve = WeakMethod(self._resolved_layers)  # no cycle: a model's sessions end before their stream

        def resolved(given: tuple[Layer, ...]) -> ResolvedSettings:
            method = resolve()
            assert method is not None
            return method(given)

        self._resolved = SettingsCache(resolved)

    def options(self, settings: Mapping[str, Any], prompt_length: int = 1) -> GenerationOptions:
        """Resolve settings over the model's defaults.

        Parameters
        ----------
        settings : mapping
            Arguments of ``model.generate``, as for `Runner.options`.
        prompt_length : int
            Tokens of the prompts of a decoder-only model, padding included; the length of an encoder's input does not
            matter.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model and prompt.
        """
        return self._checked(self._resolve(settings).for_prompt(prompt_length))

    def limits_length(self, settings: Mapping[str, Any]) -> bool:
        """Return True if the checkpoint or settings limit the length. Raises GenerationError for a wrong setting."""
        return self._resolve(settings).limits_length

    def window_options(self, settings: Mapping[str, Any], window: WindowStart) -> GenerationOptions:
        """Resolve settings for one window of a recording.

        Parameters
        ----------
        settings : mapping
            Arguments of ``model.generate``.
        window : WindowStart
            The tokens that the window begins with.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model or window.
        """
        return self._checked(self._resolve(settings).for_window(window))

    def _resolve(self, settings: Mapping[str, Any]) -> ResolvedSettings:
        """Resolve the settings of a caller, once for the same layers. Raises GenerationError."""
        return self._resolved(caller_layers(settings))

    def _resolved_layers(self, given: tuple[Layer, ...]) -> ResolvedSettings:
        about = self._manifest
        asked = self._with_token_ids(settings_of(given))
        whole = about.takes_whole_recordings
        return resolve_settings(about.generation, asked, about.sizes, speech=about.has_windows, whole_recordings=whole)

    def _with_token_ids(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Replace texts by token ids, and set the start token of a Donut. Raises GenerationError."""
        eos = self._manifest.generation.get("eos_token_id")  # the first of Whisper's special tokens
        special = eos if isinstance(eos, int) else self._manifest.sizes.vocabulary
        given = dict(settings)
        for name in (PROMPT, HOTWORDS) if self._manifest.has_windows else (BEGINNING,):
            given = with_token_ids(given, self._codec, name, special, self._manifest.sizes.max_target)
        if not self._is_donut:
            return given
        # transformers puts no start token before the decoder_input_ids of a Donut.
        tokens = merged(list(caller_layers(given))).get("decoder_input_ids")
        if not isinstance(tokens, list | tuple) or not tokens:
            return given
        return settings_of([*caller_layers(given), Layer("decoder_input_ids", {"decoder_start_token_id": tokens[0]})])

    def for_one_window(self, options: GenerationOptions) -> GenerationOptions:
        """Return the same options. Raises GenerationError for a setting that only a whole recording follows."""
        name = "vad_filter" if options.vad is not None else "" if options.recording is None else options.recording.asked
        if name:
            raise GenerationError(f"{name} is for recordings (Runner.transcribe), not for features; leave it out")
        return options

    def _checked(self, options: GenerationOptions) -> GenerationOptions:
        """Return the options if this runtime supports them. Raises GenerationError otherwise."""
        if options.stop_strings is not None:
            options = replace(options, stop_strings=self._with_texts(options.stop_strings))
        if options.trie is not None and self._runtime.trie_obstacle:
            raise GenerationError(f"trie={options.trie!r} cannot be used: {self._runtime.trie_obstacle}")
        if options.candidate_groups > 1 and (obstacle := self._runtime.groups_obstacle):
            groups = f"num_beam_groups={options.num_beam_groups}"
            asked = f"do_sample with num_beams={options.num_beams}" if options.samples_beams else groups
            raise GenerationError(f"{asked} cannot be used: {obstacle}")
        if options.aligned and (obstacle := self._runtime.alignment_obstacle):
            asked = ATTENTION if options.return_attention else TIMES
            raise GenerationError(f"{asked}=True cannot be used: {obstacle}")
        if options.needs_logits and (obstacle := self._runtime.logits_obstacle):
            reason, _, renewal = obstacle.partition(";")
            problem = f"{options.needs_logits} needs all scores of a step, which {reason}"
            raise GenerationError(problem, fix=options.without_logits.after(f"{renewal} ".lstrip()))
        return options

    def _with_texts(self, stop: StopStrings) -> StopStrings:
        """Return stop strings with the texts of this model's tokens. Raises GenerationError without a tokenizer."""
        if self._codec is None:
            problem = "stop_strings need a tokenizer, and this bundle has none"
            raise GenerationError(problem, fix="leave them out, or pass eos_token_id")
        return replace(stop, texts=self._codec.token_texts)

    def without_effect(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Warn about settings that have no effect, and return the others.

        The public method itself must call this, so that the warning points at its caller.
        """
        settings, notes = remove_settings_without_effect(
            given, speech=self._manifest.has_windows, defaults=self._manifest.generation
        )
        for note in notes:
            warnings.warn(f"{note}; leave it out", NoEffectWarning, stacklevel=3)
        return settings
