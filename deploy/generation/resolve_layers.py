"""Layers of settings, the checkpoint's and the caller's, merged, checked and resolved to `GenerationOptions`.

Source: transformers 5.23 `GenerationConfig` and the preparation in `GenerationMixin.generate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.constraint import check_beginning, read_constraint
from tightbeam.deploy.generation.fields import LIMITS, Fields
from tightbeam.deploy.generation.forced_words import read_forced_words
from tightbeam.deploy.generation.given import Layer
from tightbeam.deploy.generation.groups import read_groups
from tightbeam.deploy.generation.options import EarlyStopping, GenerationOptions
from tightbeam.deploy.generation.sampling import read_sampling
from tightbeam.deploy.generation.scoring import read_scoring
from tightbeam.deploy.generation.timestamps import TimestampRules

__all__ = ["resolve_layers"]

DEFAULT_NEW_TOKENS = 20
"""New tokens of transformers where no length is set."""
FLOAT32 = np.finfo(np.float32)


def resolve_layers(
    given: Sequence[Layer],
    *,
    vocab_size: int,
    max_positions: int,
    prompt_length: int | None = None,
    before_start: Sequence[int] = (),
    after_start: Sequence[int] = (),
    choices: Sequence[int] = (),
    timestamps: TimestampRules | None = None,
) -> GenerationOptions:
    """Merge layers of settings, as transformers does.

    ``max_new_tokens`` and ``min_new_tokens`` override ``max_length`` and ``min_length``, whatever their sources.
    Without any maximum, 20 new tokens are made.

    Parameters
    ----------
    given, vocab_size
        ``layers`` and ``vocab_size`` of `Fields`.
    max_positions : int
        Positions of the decoder.
    prompt_length : int, optional
        Tokens that every row of a decoder-only model begins with, padding included. None for rows that begin with a
        start token.
    before_start, after_start : sequence of int
        Tokens before and after the start token.
    choices : sequence of int
        Tokens for the entry `CHOSEN` of ``after_start``.
    timestamps : TimestampRules, optional
        The rules of timestamps, of a speech model that makes them.

    Returns
    -------
    GenerationOptions

    Raises
    ------
    GenerationError
        A setting is unknown, not supported, or impossible.
    """
    fields = Fields(given, vocab_size)
    fields.check_supported()
    num_beams = fields.integer("num_beams", 1, minimum=1)
    returned = fields.integer("num_return_sequences", 1, minimum=1)
    if timestamps is not None and fields.get("trie", None) is not None:
        raise fields.error("trie", "does not go with return_timestamps", "leave one out")
    sampling = read_sampling(fields)
    groups, diversity_penalty = read_groups(fields, num_beams)
    eos = fields.tokens("eos_token_id", may_be_one=True)
    samples_beams = sampling is not None and num_beams > 1
    beams = num_beams > 1 and (sampling is None or samples_beams)
    if sampling is not None and samples_beams:
        sampling = sampling.for_beams(len(eos))
    elif sampling is not None:
        num_beams = returned
    bos, pad, start = (fields.token(name) for name in ("bos_token_id", "pad_token_id", "decoder_start_token_id"))
    start = bos if start is None else start
    if prompt_length is not None:
        start = None
    elif start is None:
        raise GenerationError("decoder_start_token_id is not set, nor is bos_token_id; pass decoder_start_token_id")
    given_tokens = () if after_start else _beginning(fields, start)
    prompt = (*before_start, *(() if start is None else (start,)), *after_start, *given_tokens)
    beginning = len(prompt) if prompt_length is None else prompt_length
    max_length = _max_length(fields, max_positions, beginning)
    options = GenerationOptions(
        vocab_size=vocab_size,
        num_beams=num_beams,
        num_return_sequences=returned,
        length_penalty=fields.real("length_penalty", 1.0),
        early_stopping=_early_stopping(fields),
        min_length=_min_length(fields, beginning),
        max_length=max_length,
        limited_by=next((name for name in LIMITS if name in fields), ""),
        no_repeat_ngram_size=fields.integer("no_repeat_ngram_size", 0, minimum=0),
        encoder_no_repeat_ngram_size=fields.integer("encoder_no_repeat_ngram_size", 0, minimum=0),
        repetition_penalty=fields.real("repetition_penalty", 1.0),
        forced_bos_token_id=fields.token("forced_bos_token_id"),
        forced_eos_token_ids=fields.tokens("forced_eos_token_id", may_be_one=True),
        eos_token_ids=eos,
        pad_token_id=eos[0] if pad is None and eos else pad,
        beginning=beginning,
        prompt=prompt,
        choices=tuple(choices),
        bad_words_ids=_bad_words(fields, eos),
        suppress_tokens=fields.tokens("suppress_tokens", may_be_empty=True),
        begin_suppress_tokens=fields.tokens("begin_suppress_tokens", may_be_empty=True),
        sampling=sampling,
        timestamps=timestamps,
        scoring=read_scoring(fields, log_probabilities=beams),
        renormalize=fields.flag("renormalize_logits", default=False) and beams,
        num_beam_groups=groups,
        diversity_penalty=diversity_penalty,
        samples_beams=samples_beams,
        force_words_ids=read_forced_words(fields, num_beams),
        given=len(given_tokens),
        trie=read_constraint(fields),
    )
    check_beginning(fields, options.trie, prompt[options.root :] if given_tokens else ())
    _check_together(fields, options)
    return options


def _beginning(fields: Fields, start: int | None) -> tuple[int, ...]:
    """The tokens after the start token that the caller gives, with or without the start token before them."""
    if "decoder_input_ids" not in fields:
        return ()
    if start is None:
        fix = "pass the whole prompt as the input"
        raise fields.error("decoder_input_ids", "is for models with an encoder", fix)
    given = fields.tokens("decoder_input_ids")
    return given[1:] if given[0] == start else given


def _max_length(fields: Fields, max_positions: int, beginning: int) -> int:
    """Return the total length of rows that begin with ``beginning`` tokens: from max_new_tokens, else max_length, else
    20 new tokens, limited by the positions."""
    if beginning >= max_positions and "decoder_input_ids" in fields:
        raise fields.error("decoder_input_ids", f"leaves none of the model's {max_positions} positions", "shorten it")
    if beginning > 1 and beginning >= max_positions:
        raise GenerationError(
            f"prompts of {beginning} tokens leave none of the model's {max_positions} positions; shorten them"
        )
    name, start = "max_length", 0
    length = fields.integer("max_length", 0, minimum=1)
    if "max_new_tokens" in fields:
        name, start = "max_new_tokens", beginning
        length = start + fields.integer("max_new_tokens", 0, minimum=1)
    elif "max_length" not in fields:
        length = min(beginning + DEFAULT_NEW_TOKENS, max_positions)
    if length > max_positions:
        problem = f"makes sequences of {length} tokens, the model has {max_positions} positions"
        raise fields.error(name, problem, f"pass {name}={max_positions - start} or less")
    if length <= beginning:
        counted = "the start token" if beginning == 1 else f"the {beginning} tokens of the prompt"
        raise fields.error(
            "max_length",
            f"leaves no room for a new token, it counts {counted}",
            f"pass {beginning + 1} or more" if beginning == 1 else f"pass {beginning + 1} or more, or max_new_tokens",
        )
    return length


def _min_length(fields: Fields, beginning: int) -> int:
    length = fields.integer("min_length", 0, minimum=0)
    if "min_new_tokens" not in fields:
        return length
    least = fields.integer("min_new_tokens", 0, minimum=0)
    if least > DEFAULT_NEW_TOKENS and not any(name in fields for name in LIMITS):
        made = f"is more than the {DEFAULT_NEW_TOKENS} new tokens that are made where no length is set"
        raise fields.error("min_new_tokens", made, f"pass max_new_tokens={least} or more, too")
    return beginning + least


def _early_stopping(fields: Fields) -> EarlyStopping:
    value: EarlyStopping = fields.get("early_stopping", False)
    if not (isinstance(value, bool) or (isinstance(value, str) and value == "never")):
        raise fields.error("early_stopping", "is not a choice", "pass True, False or 'never'")
    return value


def _bad_words(fields: Fields, eos: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the banned sequences. A single end-of-sequence token is dropped from them, as in transformers."""
    words = fields.get("bad_words_ids", None)
    if words is None:
        return ()
    if not isinstance(words, list | tuple) or not words or not all(isinstance(w, list | tuple) and w for w in words):
        raise fields.error("bad_words_ids", "is not a list of lists of token ids", "pass a list such as [[17], [4, 8]]")
    checked = [tuple(fields.check_token("bad_words_ids", token) for token in word) for word in words]
    kept = tuple(word for word in checked if len(word) > 1 or word[0] not in eos)
    return kept


def _check_together(fields: Fields, options: GenerationOptions) -> None:
    """Raise GenerationError for values that contradict each other."""
    beams, count = options.num_beams, options.num_return_sequences
    if count > beams:
        raise fields.error("num_return_sequences", f"is more than num_beams={beams} can give", f"pass {beams} or less")
    if options.candidates > options.vocab_size and options.sampling is None:
        most = options.vocab_size * beams // options.candidates
        fix = f"num_beams={most} or less" if most else "fewer eos_token_id"
        groups = options.num_beam_groups
        in_groups, fix = (f" in {groups} groups", "fewer beams, or more groups") if groups > 1 else ("", fix)
        raise GenerationError(
            f"num_beams={beams}{in_groups} needs {options.candidates} distinct tokens, "
            f"the vocabulary has {options.vocab_size}; pass {fix}"
        )
    if not FLOAT32.tiny <= options.repetition_penalty <= FLOAT32.max:
        raise fields.error("repetition_penalty", "is no positive float32", "pass a number above 0; 1.0 is off")
    if abs(options.length_penalty) * math.log2(options.max_length) > 90:  # 1e9 x 2**90 still is a float32
        raise fields.error(
            "length_penalty", "leaves the range of float32 at the longest length", "pass one nearer to 0"
        )
    forced_bos = () if options.forced_bos_token_id is None else (options.forced_bos_token_id,)
    others = {
        "do_sample": options.samples_beams,
        "num_beam_groups": options.num_beam_groups > 1,
        "force_words_ids": bool(options.force_words_ids),
    }
    for name in [name for name, asked in others.items() if asked and options.renormalize]:
        raise fields.error(
            "renormalize_logits", f"does not go with {name} and beams", "pass renormalize_logits=False, or leave it out"
        )
    for name, forced in (("forced_bos_token_id", forced_bos), ("forced_eos_token_id", options.forced_eos_token_ids)):
        if forced and set(forced) <= set(options.suppress_tokens):
            raise fields.error(name, "is also in suppress_tokens, so nothing could follow", "drop one of the two")
