"""The generation settings: one table of those that are supported, and the fields of transformers that are not.

Source: transformers 5.24 `GenerationConfig`. Every field of that class is in exactly one of `FIELDS`, `INERT`,
`DORMANT` and `UNSUPPORTED`, so none is ignored silently. A setting is added as one entry of `FIELDS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from tightbeam.deploy.errors import Setting
from tightbeam.deploy.generation.values import (
    Anything,
    Choice,
    ClipTimes,
    Flag,
    ForcedWords,
    Integer,
    Number,
    Prompt,
    StopTexts,
    Temperatures,
    TokenId,
    TokenIds,
    TokenSequences,
    TokenTable,
    TrieFile,
    ValueType,
    VoiceActivity,
    WhisperPromptIds,
)

__all__ = [
    "ALL_SEGMENTS",
    "ATTENTION",
    "DORMANT",
    "FIELDS",
    "FIRST_SEGMENT",
    "INERT",
    "LIMITS",
    "SAMPLING",
    "SPEECH_ONLY",
    "SPOKEN_ONLY",
    "SUPPORTED",
    "TIMES",
    "TRANSLATION_ONLY",
    "UNSUPPORTED",
    "WARPERS",
    "Field",
    "ModelKind",
    "defaults_of",
    "fields_of",
]

TIMES = "return_token_timestamps"
"""The setting of a speech model that asks for the times of its tokens."""
ATTENTION = "return_attention"
"""The setting of a translator that asks how much each new token attends to each source token."""
LIMITS = ("max_new_tokens", "max_length")
"""Settings that limit the length of a row. The first one that is set is used."""
MOST_BEAMS = 1 << 16
"""Bound on the beams of a row: caches are made for all of them."""
MOST_ALTERNATIVES = 1024
"""Bound on the alternatives of a position."""
FIRST_SEGMENT, ALL_SEGMENTS = "first-segment", "all-segments"
SCORES = ("return_token_scores", "return_alternatives")
POSITIVE = (float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max))
TEMPERATURES, ANY_NUMBER = (1e-30, 1e30), (-math.inf, math.inf)
SEED, GREEDY = Integer(0, (1 << 64) - 1), Setting("do_sample", False)


class ModelKind(StrEnum):
    """A kind of model by its settings, as errors name it."""

    TEXT = "models of texts and of images"
    RECORDING = "models of whole recordings"
    TRANSLATOR = "translators whose tokenizer has tokens of languages"
    SPOKEN = "Canary and Cohere ASR"
    WHISPER = "Whisper"


_TEXT, RECORDING, TRANSLATOR, SPOKEN, WHISPER = (frozenset({kind}) for kind in ModelKind)
TEXT, SPEECH = _TEXT | RECORDING, RECORDING | WHISPER


@dataclass(frozen=True)
class Field:
    """A generation setting.

    Attributes
    ----------
    name : str
        The name in transformers, and in `GenerationOptions` if the search takes the value as it is.
    type : ValueType
        The values that it may have.
    default : object
        The value, as the search takes it, of a setting that nobody gives; it asks for nothing.
    models : frozenset of ModelKind
        The kinds of model that it is for.
    ignored : tuple
        Values that a kind of model without this setting accepts.
    not_with : tuple of str
        Settings that it does not go with, if they ask for something.
    needs_sampling : bool
        True for a setting that is read if tokens are drawn.
    by_name : bool
        True for a setting that a config has for other reasons: it counts if somebody asks for it by name.
    keeps_checkpoint : bool
        True if None in a call leaves the checkpoint's value; None unsets any other setting.
    ours : bool
        True for a setting that is not a field of transformers' `GenerationConfig`.
    of_recording : bool
        True for a setting that only a whole recording follows.
    of_checkpoint : bool
        True for a fact of the checkpoint, which callers leave alone.
    """

    name: str
    type: ValueType
    default: Any = None
    models: frozenset[ModelKind] = TEXT | WHISPER
    ignored: tuple[Any, ...] = ()
    not_with: tuple[str, ...] = ()
    needs_sampling: bool = False
    by_name: bool = False
    keeps_checkpoint: bool = False
    ours: bool = False
    of_recording: bool = False
    of_checkpoint: bool = False


def _of_sampling(name: str, type: ValueType, default: Any, *ignored: Any, **more: Any) -> Field:
    return Field(name, type, default, ignored=ignored, needs_sampling=True, **more)


def _of_recording(name: str, type: ValueType, default: Any = None, **more: Any) -> Field:
    return Field(name, type, default, WHISPER, of_recording=True, **more)


def _of_checkpoint(name: str, type: ValueType, default: Any = None) -> Field:
    return Field(name, type, default, WHISPER, of_checkpoint=True)


FIELDS: tuple[Field, ...] = (
    # The search
    Field("num_beams", Integer(1, MOST_BEAMS), 1, keeps_checkpoint=True),
    Field("num_return_sequences", Integer(1, MOST_BEAMS), 1, TEXT, ignored=(1, None), keeps_checkpoint=True),
    Field("do_sample", Flag(), False, TEXT, ignored=(False, None)),
    Field("num_beam_groups", Integer(1, MOST_BEAMS), 1, TEXT, (1, None), ("do_sample", *SCORES, ATTENTION)),
    Field("diversity_penalty", Number(1.0), 0.0),
    Field("force_words_ids", ForcedWords(), (), TEXT, (None,), ("do_sample", "num_beam_groups", *SCORES, ATTENTION)),
    Field("length_penalty", Number(1.0), 1.0, keeps_checkpoint=True),
    Field("early_stopping", Choice(True, False, "never"), False),
    Field("trie", TrieFile(), not_with=("return_timestamps",), ours=True),
    # Lengths
    Field("max_new_tokens", Integer(1)),
    Field("max_length", Integer(1), keeps_checkpoint=True),
    Field("min_new_tokens", Integer(0)),
    Field("min_length", Integer(0), 0),
    Field("stop_strings", StopTexts(), models=TEXT, ignored=(None,)),
    # Processors of scores
    Field("no_repeat_ngram_size", Integer(0), 0),
    Field("encoder_no_repeat_ngram_size", Integer(0), 0),
    Field("repetition_penalty", Number(1.2, "a number above 0 in the range of float32", POSITIVE), 1.0),
    Field("renormalize_logits", Flag(), False, not_with=("num_beam_groups", "force_words_ids")),
    Field("bad_words_ids", TokenSequences(), ()),
    Field("suppress_tokens", TokenIds(may_be_empty=True), ()),
    Field("begin_suppress_tokens", TokenIds(may_be_empty=True), ()),
    Field("forced_bos_token_id", TokenId()),
    Field("forced_eos_token_id", TokenIds(may_be_one=True), ()),
    # Special tokens, and the beginning of the output
    Field("eos_token_id", TokenIds(may_be_one=True), ()),
    Field("pad_token_id", TokenId()),
    Field("bos_token_id", TokenId()),
    Field("decoder_start_token_id", TokenId()),
    Field("decoder_input_ids", TokenIds(by_position=True), (), TEXT, ignored=(None,), ours=True),
    Field("draft_ids", TokenIds(may_be_empty=True), (), ignored=(None,), ours=True),
    Field("decoder_input_text", Anything(), None, TEXT, ignored=(None,), ours=True),
    # Results
    Field("return_token_scores", Flag(), False, ours=True),
    Field("return_alternatives", Integer(0, MOST_ALTERNATIVES), 0, ours=True),
    Field("normalize_logits", Flag(), ours=True),
    Field(ATTENTION, Flag(), False, TEXT, ignored=(False, None), ours=True),
    # Sampling
    _of_sampling("temperature", Number(0.7, "a number above 0", TEMPERATURES, GREEDY), 1.0, 1.0, models=TEXT),
    _of_sampling("top_k", Integer(0), 50, 50, 0),
    _of_sampling("top_p", Number(0.9, "a number from 0 to 1", (0, 1)), 1.0, 1.0),
    _of_sampling("min_p", Number(0.1, "a number from 0 to 1", (0, 1)), 0.0, 0.0),
    _of_sampling("typical_p", Number(0.9, "a number above 0, up to 1", (POSITIVE[0], 1)), 1.0, 1.0),
    _of_sampling("seed", SEED, None, models=TEXT, ours=True),
    # Translators of many languages
    Field("source_language", Anything(), None, TRANSLATOR),
    Field("target_language", Anything(), None, TRANSLATOR),
    # Speech models whose output begins with languages, which have `language` and may have `target_language` too
    Field("punctuation", Flag(), None, SPOKEN),
    # Whisper
    Field("language", Anything(), None, WHISPER),
    Field("task", Anything(), None, WHISPER),
    Field("return_timestamps", Flag(), False, WHISPER),
    Field(TIMES, Flag(), False, WHISPER),
    _of_recording("clip_timestamps", ClipTimes(), ()),
    _of_recording("prompt", Anything()),
    _of_recording("hotwords", Anything()),
    _of_recording("prompt_ids", WhisperPromptIds(), ()),
    _of_recording("prompt_condition_type", Choice(FIRST_SEGMENT, ALL_SEGMENTS), FIRST_SEGMENT),
    _of_recording("condition_on_prev_tokens", Flag(), False),
    _of_recording("temperature", Temperatures(), (0.0,), by_name=True),
    _of_recording("seed", SEED, by_name=True),
    _of_recording("compression_ratio_threshold", Number(1.35, "a number", ANY_NUMBER)),
    _of_recording("logprob_threshold", Number(-1.0, "a number", ANY_NUMBER)),
    _of_recording("no_speech_threshold", Number(0.6, "a number", ANY_NUMBER)),
    Field("vad_filter", Flag(), False, SPEECH, of_recording=True),
    Field("vad_parameters", VoiceActivity(), None, SPEECH, of_recording=True),
    _of_recording("batched_windows", Flag(), False, not_with=("condition_on_prev_tokens",)),
    _of_recording("silence_threshold_db", Number(-45, "a number below 0, full scale", (-math.inf, -math.ulp(0)))),
    _of_recording("min_speech_s", Number(0.1, "a number of seconds from 0 on", (0, math.inf))),
    # Facts of a Whisper checkpoint
    _of_checkpoint("is_multilingual", Anything()),
    _of_checkpoint("lang_to_id", TokenTable(), {}),
    _of_checkpoint("task_to_id", TokenTable(), {}),
    _of_checkpoint("no_timestamps_token_id", TokenId()),
    _of_checkpoint("max_initial_timestamp_index", Integer(0)),
    _of_checkpoint("forced_decoder_ids", Prompt(), ()),
    _of_checkpoint("prev_sot_token_id", TokenId()),
    _of_checkpoint("alignment_heads", Anything()),
    _of_checkpoint("median_filter_width", Anything()),
    _of_checkpoint("return_segments", Anything()),
)
"""Every supported setting. Two entries with one name are for different kinds of model."""

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

A checkpoint or ``generation_config`` may have any value (some do); if somebody asks for one by name, any but a neutral
one is an error. `WARPERS` are an error wherever they come from if something is sampled.
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


@cache
def fields_of(model: ModelKind) -> Mapping[str, Field]:
    """Return the settings of a kind of model by their names."""
    return {own.name: own for own in FIELDS if model in own.models}


@cache
def defaults_of(model: ModelKind) -> Mapping[str, Any]:
    """Return the defaults of all settings, for a kind of model."""
    return {own.name: own.default for own in (*FIELDS, *fields_of(model).values())}


def _names(models: frozenset[ModelKind]) -> frozenset[str]:
    return frozenset(own.name for own in FIELDS if own.models <= models and not own.of_checkpoint)


SAMPLING = {name: own.ignored for name, own in fields_of(ModelKind.TEXT).items() if own.needs_sampling}
"""Settings that are supported with ``do_sample``, and their neutral values.

Without it, a checkpoint or ``generation_config`` may have any value (many do); if somebody asks for one by name, any
but a neutral one is an error.
"""
SUPPORTED = frozenset(fields_of(ModelKind.TEXT)) - SAMPLING.keys()
"""Settings that are supported with or without sampling."""
SPEECH_ONLY = _names(SPEECH) - SAMPLING.keys()
"""Settings of speech models only, most of them of Whisper."""
SPOKEN_ONLY = _names(SPOKEN)
"""Settings of Canary and Cohere ASR only."""
TRANSLATION_ONLY = _names(TRANSLATOR)
"""Settings of translators of many languages only."""
