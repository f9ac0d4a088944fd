"""Fields of transformers' `GenerationConfig`: which are supported, and typed access to merged values.

Source: transformers 5.23 `GenerationConfig`. Every field of that class is in exactly one of the first five tables, so
none is ignored silently.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.given import Layer
from tightbeam.deploy.generation.other_names import advice_on

__all__ = [
    "DORMANT",
    "INERT",
    "LIMITS",
    "OWN",
    "SAMPLING",
    "SUPPORTED",
    "UNSUPPORTED",
    "Fields",
    "GenerationError",
    "is_number",
]

SUPPORTED = frozenset(
    """encoder_no_repeat_ngram_size return_token_scores return_alternatives normalize_logits decoder_input_text
    num_beam_groups diversity_penalty force_words_ids
    num_beams num_return_sequences length_penalty early_stopping min_length min_new_tokens max_length max_new_tokens
    no_repeat_ngram_size repetition_penalty forced_bos_token_id forced_eos_token_id eos_token_id pad_token_id
    bos_token_id decoder_start_token_id bad_words_ids suppress_tokens begin_suppress_tokens do_sample
    decoder_input_ids trie renormalize_logits""".split()
)

SAMPLING: dict[str, tuple[object, ...]] = {
    "temperature": (1.0,),
    "top_k": (50, 0),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "seed": (),
}
"""Fields that are supported with ``do_sample``, and their neutral values.

Without it, a checkpoint or ``generation_config`` may have any value (many do); where somebody asks for one by name, any
but a neutral one is an error. ``seed`` is the one that transformers does not have.
"""

OWN = frozenset({"trie", "decoder_input_text", "return_token_scores", "return_alternatives", "normalize_logits"})
"""Supported settings that no field of transformers' `GenerationConfig` is."""

INERT = frozenset(
    """use_cache cache_config max_cache_len prefill_chunk_size compile_config disable_compile continuous_batching_config
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
    _from_model_config _commit_hash transformers_version""".split()
)
"""Fields that cannot change a token. They are accepted with any value."""

DORMANT: dict[str, tuple[object, ...]] = {
    "top_h": (),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "num_assistant_tokens": (20,),
    "num_assistant_tokens_schedule": ("constant",),
    "assistant_confidence_threshold": (0.4,),
    "assistant_lookbehind": (10,),
    "target_lookbehind": (10,),
    "assistant_ensemble_weight": (),
    "max_matching_ngram_size": (),
    "speculation_type": (),
}
"""Unsupported fields that transformers reads only while sampling or with an assistant model, and their neutral values.

A checkpoint or ``generation_config`` may have any value (some do); where somebody asks for one by name, any but a
neutral one is an error. Those of `WARPERS` are an error wherever they come from where something is sampled.
"""

WARPERS = ("top_h", "epsilon_cutoff", "eta_cutoff")
"""Fields of `DORMANT` that transformers reads while sampling."""

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "constraints": (),
    "low_memory": (False,),
    "use_mtp": (False,),
    "is_assistant": (False,),
    "prompt_lookup_num_tokens": (),
    "assistant_early_exit": (),
    "max_time": (),
    "stop_strings": (),
    "encoder_repetition_penalty": (1.0,),
    "remove_invalid_values": (False,),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "token_healing": (False,),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    # All but "quantized" (other numbers) and "paged" (another scheduler) hold the same cache in other places.
    "cache_implementation": (
        *("dynamic", "static", "sliding_window", "hybrid", "hybrid_chunked"),
        *("offloaded", "offloaded_static", "offloaded_hybrid", "offloaded_hybrid_chunked"),
    ),
}
"""Fields that would change the tokens and are not supported, and their neutral values (besides None)."""

NEEDED = frozenset("num_beams num_return_sequences length_penalty max_length".split())
"""Fields that transformers requires: None in a call leaves the checkpoint's value, and unsets any other field."""

SPEECH_ONLY = frozenset(
    """language task return_timestamps return_token_timestamps condition_on_prev_tokens prompt prompt_ids
    prompt_condition_type
    compression_ratio_threshold logprob_threshold no_speech_threshold silence_threshold_db min_speech_s""".split()
)
"""Fields of speech models only."""

TRANSLATION_ONLY = frozenset({"source_language", "target_language"})
"""Settings of translators of many languages only."""

LIMITS = ("max_new_tokens", "max_length")
"""Fields that limit the length of a row. The first one that is set is used."""
LONG_NAME = 60
"""Characters of an unknown name that an error quotes."""


class Fields:
    """Merged values by field name, the source of each, and typed access to them.

    Parameters
    ----------
    layers : sequence of Layer
        The checkpoint's settings and the caller's, by transformers' field names; a later layer overrides an earlier
        one. None is "not set"; in all but the first it unsets all fields but `NEEDED`.
    vocab_size : int

    Raises
    ------
    GenerationError
        A field is unknown.
    """

    def __init__(self, layers: Sequence[Layer], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.values: dict[str, Any] = {}
        self._layers: dict[str, Layer] = {}
        known = SUPPORTED | SAMPLING.keys() | INERT | DORMANT.keys() | UNSUPPORTED.keys()
        for layer in layers:
            for name, value in layer.values.items():
                if name not in known:
                    problem = f"is not a generation setting; {advice_on(name[:LONG_NAME], SUPPORTED | SAMPLING.keys())}"
                    if name in SPEECH_ONLY:
                        problem = "is not a setting of this model: it is for Whisper; remove it"
                    if name in TRANSLATION_ONLY:
                        problem = (
                            "is not a setting of this model: it is for translators whose tokenizer has tokens of "
                            "languages; remove it"
                        )
                    shown = name if len(name) < LONG_NAME else f"{name[:LONG_NAME]}..."
                    shown = shown if shown.isprintable() else repr(shown)
                    raise GenerationError(f"{shown}={reprlib.repr(value)} (from {layer.source}) {problem}")
                if value is None and name not in NEEDED:
                    self.values.pop(name, None)
                elif value is not None:
                    self.values[name] = value
                    self._layers[name] = layer

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any) -> Any:
        return self.values.get(name, default)

    def source(self, name: str) -> str:
        """The source of a field that is set."""
        return self._layers[name].source

    def error(self, name: str, problem: str, fix: object) -> GenerationError:
        value = reprlib.repr(self.values.get(name))
        source = self._layers[name].source if name in self._layers else "transformers' default"
        return GenerationError(f"{name}={value} (from {source}) {problem}; {fix}")

    def check_supported(self) -> None:
        """Raise GenerationError for a value of an unsupported field that is not neutral."""
        for name, value in self.values.items():
            asked = self._layers[name].asked
            if name in UNSUPPORTED:
                neutral = UNSUPPORTED[name]
            elif name in DORMANT and (asked or (name in WARPERS and self.samples)):
                neutral = DORMANT[name]
            else:
                continue
            if getattr(value, "ndim", 0) or value not in neutral:  # an array or a tensor is no choice
                where = "leave it out" if asked else "remove it there"
                fix = f"{where} or pass {name}={neutral[0]!r}" if neutral else where
                raise self.error(name, "is not supported", fix)

    @property
    def samples(self) -> bool:
        """True where ``do_sample`` is set."""
        return self.values.get("do_sample", False) is True

    def check_without_sampling(self) -> None:
        """Raise GenerationError for a setting of sampling in the call that is not neutral, since nothing is sampled."""
        for name, neutral in SAMPLING.items():
            value = self.values.get(name)
            unusual = name in self.values and (getattr(value, "ndim", 0) > 0 or value not in neutral)
            if unusual and self._layers[name].asked:
                raise self.error(name, "does nothing without do_sample", "pass do_sample=True, or leave it out")

    def integer(self, name: str, default: int, *, minimum: int) -> int:
        value = self.get(name, default)
        if name in self and not (is_number(value, Integral) and value >= minimum):
            raise self.error(name, f"is not an integer of at least {minimum}", f"pass {minimum} or more")
        return int(value)

    def real(self, name: str, default: float) -> float:
        value = self.get(name, default)
        try:
            number = float(value) if is_number(value, Real) else math.nan
        except OverflowError:  # an integer beyond float64
            number = math.inf
        if not math.isfinite(number):
            raise self.error(name, "is not a finite number", f"pass a number such as {default}")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool | np.bool_):
            raise self.error(name, "is neither true nor false", "pass True or False")
        return bool(value)

    def check_token(self, name: str, value: Any) -> int:
        if not is_number(value, Integral):
            raise self.error(name, f"holds {reprlib.repr(value)}, which is not a token id", "pass integers")
        if not 0 <= value < self.vocab_size:
            last = self.vocab_size - 1
            raise self.error(name, f"holds {value}, which is outside the vocabulary", f"pass ids from 0 to {last}")
        return int(value)

    def token(self, name: str) -> int | None:
        value = self.get(name, None)
        return None if value is None else self.check_token(name, value)

    def tokens(self, name: str, *, may_be_one: bool = False, may_be_empty: bool = False) -> tuple[int, ...]:
        if name not in self:
            return ()
        value = self.values[name]
        if isinstance(value, list | tuple) and (value or may_be_empty):
            return tuple(self.check_token(name, token) for token in value)
        if not may_be_one or isinstance(value, list | tuple):
            raise self.error(name, "is not a list of token ids", "pass a list such as [17, 4]")
        return (self.check_token(name, value),)


def is_number(value: object, kind: type) -> bool:
    """Return True for a number of that kind, numpy's included. True and False are not numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)
