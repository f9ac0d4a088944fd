"""The settings of one generation: checkpoint defaults and the caller's arguments, merged, checked and resolved.

Source: transformers 5.23 `GenerationConfig` and the preparation in `GenerationMixin.generate`. Field names and their
meaning are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.confidence import Measured
from tightbeam.deploy.generation.constraint import check_beginning, read_constraint
from tightbeam.deploy.generation.fields import LIMITS, Fields
from tightbeam.deploy.generation.forced_words import read_forced_words
from tightbeam.deploy.generation.given import Layer, layers
from tightbeam.deploy.generation.groups import read_groups
from tightbeam.deploy.generation.recording import RecordingSettings
from tightbeam.deploy.generation.sampling import Sampling, read_sampling
from tightbeam.deploy.generation.scoring import Scoring, read_scoring
from tightbeam.deploy.generation.timestamps import TimestampRules
from tightbeam.deploy.tries.trie import Trie

__all__ = ["CHOSEN", "GenerationOptions", "resolve_layers", "resolve_options"]

EarlyStopping: TypeAlias = bool | Literal["never"]
DEFAULT_NEW_TOKENS = 20
"""New tokens of transformers where no length is set."""
FLOAT32 = np.finfo(np.float32)
MOST_CANDIDATES = 248
"""The largest ``top_k`` that a step's candidates are taken for; beyond it, whole rows are cheaper."""
TIES = 8
"""Candidates beyond ``top_k``, which show that no more tokens equal the last one."""
CHOSEN = -1
"""Placeholder in a prompt for a token that the model chooses among some."""


@dataclass(frozen=True)
class GenerationOptions:
    """Resolved settings of one generation. Lengths count all tokens of a row, start token or prompt included.

    Attributes
    ----------
    vocab_size : int
        Tokens that the model scores.
    num_beams : int
        M, rows of a sample: beams; 1 in greedy search; with sampling without beams the sequences returned, which are
        drawn side by side.
    num_return_sequences : int
        Sequences returned for each sample, at most ``num_beams``.
    length_penalty : float
        A finished score is divided by (new tokens) ** length_penalty.
    early_stopping : bool or "never"
        Condition that ends a sample. True: M beams are finished. False: the best running beam, at its present length,
        cannot beat the worst finished one. "never": it cannot at any length.
    min_length : int
        No end-of-sequence token before this length.
    max_length : int
        The length at which every row ends.
    limited_by : str
        The field that limits the length, ``max_new_tokens`` or ``max_length``; empty where neither is set.
    no_repeat_ngram_size : int
        No n-gram of this size occurs twice in a row; 0 is off.
    encoder_no_repeat_ngram_size : int
        No n-gram of this size of the source, or of a decoder-only model's prompt, occurs in a row; 0 is off.
    repetition_penalty : float
        Factor on the scores of tokens already in the row; 1.0 is off.
    forced_bos_token_id : int or None
        The token after a row's first one.
    forced_eos_token_ids : tuple of int
        The last token at ``max_length`` is one of these; empty is off.
    eos_token_ids : tuple of int
        Tokens that end a sequence. Where empty, all rows run to ``max_length``.
    pad_token_id : int or None
        Fills rows that have ended; None only without end-of-sequence token.
    beginning : int
        P, the tokens that every row begins with.
    prompt : tuple of int
        Those tokens, the start token first, `CHOSEN` where the model chooses. Empty where rows have prompts of their
        own.
    choices : tuple of int
        The tokens among which the model chooses.
    bad_words_ids : tuple of tuple of int
        Token sequences that must not occur.
    suppress_tokens : tuple of int
        Tokens that must not occur.
    begin_suppress_tokens : tuple of int
        Tokens that must not come first, at the length ``begin``.
    sampling : Sampling or None
        None where the best tokens are taken. Options are equal whatever it is.
    timestamps : TimestampRules or None
        The rules of a speech model's timestamps; None without timestamps.
    scoring : Scoring or None
        What results say of single tokens; None for nothing.
    measured : Measured or None
        What is measured of a speech model's confidence; None measures nothing.
    recording : RecordingSettings or None
        How a speech model goes through a recording; None for a text model.
    num_beam_groups : int
        Groups of the beams in diverse beam search, all of one size; 1 in any other search.
    diversity_penalty : float
        Taken off the score of a token for each beam of an earlier group that has just chosen it.
    samples_beams : bool
        True where the continuations of beams are drawn: beam sampling.
    force_words_ids : tuple of tuple of tuple of int
        Words that must occur, each with its alternatives; empty forces none.
    given : int
        The last tokens of ``prompt`` that ``decoder_input_ids`` gave, which follow the trie from its root.
    trie : Trie or None
        The sequences that may come from the length ``root`` on; None allows all.
    """

    vocab_size: int
    num_beams: int
    num_return_sequences: int
    length_penalty: float
    early_stopping: EarlyStopping
    min_length: int
    max_length: int
    limited_by: str
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    repetition_penalty: float
    forced_bos_token_id: int | None
    forced_eos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    beginning: int
    prompt: tuple[int, ...]
    choices: tuple[int, ...]
    bad_words_ids: tuple[tuple[int, ...], ...]
    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    sampling: Sampling | None = field(default=None, compare=False)
    timestamps: TimestampRules | None = None
    scoring: Scoring | None = None
    measured: Measured | None = None
    recording: RecordingSettings | None = None
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    samples_beams: bool = False
    force_words_ids: tuple[tuple[tuple[int, ...], ...], ...] = ()
    given: int = 0
    trie: Trie | None = None

    @property
    def candidates(self) -> int:
        """C, the continuations of each sample: enough that M stay open if every end-of-sequence token is among them.

        In diverse beam search they are those of each group: as many for its beams, and those that can be penalised,
        which are at most as many tokens of each row as there are beams in other groups.

        With sampling they are those of each row that are kept, where so many suffice; a power of two, so that settings
        share batches.
        """
        if self.samples_candidates:
            assert self.sampling is not None
            return min(self.vocab_size, 1 << (self.sampling.top_k + TIES - 1).bit_length())
        size = self.num_beams // self.num_beam_groups
        count = (max(2, 1 + len(self.eos_token_ids)) + self.num_beams - size) * size
        return count if self.sampling is None else min(count, self.vocab_size)

    @property
    def samples_candidates(self) -> bool:
        """True where tokens are drawn among the candidates of a step: of a row or beams, a few tokens are kept."""
        alone = self.num_beams == 1 or self.samples_beams
        few = self.sampling is not None and alone and 0 < self.sampling.top_k <= MOST_CANDIDATES
        return few and self.timestamps is None and self.measured is None

    @property
    def candidate_groups(self) -> int:
        """Groups of a sample's rows that have candidates of their own: those of beams; each beam in beam sampling."""
        return self.num_beams if self.samples_beams and self.samples_candidates else self.num_beam_groups

    @property
    def drawn(self) -> int:
        """The continuations that a step of beam sampling draws."""
        return max(2, 1 + len(self.eos_token_ids)) * self.num_beams

    @property
    def rows_asked(self) -> str:
        """The setting that asks for M rows, as errors show it."""
        several = self.sampling is not None and not self.samples_beams
        return f"{'num_return_sequences' if several else 'num_beams'}={self.num_beams}"

    def for_input(self, *source: Sequence[int] | Array, entropy: bytes = b"") -> GenerationOptions:
        """Return these options for one input, on which its draws depend.

        Parameters
        ----------
        *source : sequence of int or array
            Token ids without padding, or float32 features.
        entropy : bytes
            Taken where there is no seed; by default the system's.

        Returns
        -------
        GenerationOptions
        """
        if self.sampling is None:
            return self
        return replace(self, sampling=self.sampling.for_input(*source, entropy=entropy))

    def without_source_tokens(self, source: str) -> GenerationOptions:
        """Return the same options, for a source that has no tokens.

        Parameters
        ----------
        source : str
            The kind of source, as the error names it.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            A setting reads a source's tokens.
        """
        if size := self.encoder_no_repeat_ngram_size:
            raise GenerationError(
                f"encoder_no_repeat_ngram_size={size} is about a source's tokens, {source} has none; set 0"
            )
        return self

    @property
    def kind(self) -> str:
        """The kind of search, which samples of one batch share."""
        return f"{self._search}, aligned" if self.aligned else self._search

    @property
    def _search(self) -> str:
        if self.sampling is not None:
            drawn = "among candidates" if self.samples_candidates else "from rows"
            return f"drawn beams {drawn}" if self.samples_beams else drawn
        if self.num_beam_groups > 1:
            return f"{self.num_beam_groups} groups of beams"
        if self.force_words_ids:
            return "beams with forced words"
        search = "beams" if self.normalize else "greedy"
        return f"{search} from rows" if self.reads_logits else search

    @property
    def aligned(self) -> bool:
        """True where times of tokens are asked for, so that each step gives the queries of the alignment heads."""
        return self.scoring is not None and self.scoring.times

    @property
    def reads_logits(self) -> bool:
        """True where all scores of a row are looked at, if the runtime gives them."""
        asked = (self.sampling, self.timestamps, self.scoring, self.measured)
        return bool(self.force_words_ids) or any(each is not None for each in asked)

    @property
    def needs_logits(self) -> str:
        """The setting that needs all scores of a row; empty where candidates suffice."""
        if self.timestamps is not None:
            return "return_timestamps=True"
        if self.measured is not None:
            return "logprob_threshold"
        if self.force_words_ids:
            return "force_words_ids"
        if self.sampling is None and self.scoring is not None:
            return self.scoring.asked
        if self.sampling is None or self.samples_candidates:
            return ""
        if self.num_beams > 1 and not self.samples_beams:
            return self.rows_asked
        return f"top_k={self.sampling.top_k}"

    @property
    def without_logits(self) -> str:
        """The fix where a runtime has no logits."""
        if self.timestamps is not None:
            return "pass return_timestamps=False"
        if self.sampling is None or self.measured is not None:
            return "leave it out"
        top_k = f"pass top_k=1 to {MOST_CANDIDATES}"
        return f"{top_k} and num_return_sequences=1" if self.num_beams > 1 and not self.samples_beams else top_k

    @property
    def begin(self) -> int:
        """The length before the first token that is not forced, where ``begin_suppress_tokens`` count."""
        return self.beginning + (self.beginning == 1 and self.forced_bos_token_id is not None)

    @property
    def root(self) -> int:
        """The length at which rows are at the root of the trie.

        It is ``begin`` without the tokens of ``decoder_input_ids``, but for a first one that would be forced.
        """
        if not self.given:
            return self.begin
        start = self.beginning - self.given
        return start + (start == 1 and self.prompt[start] == self.forced_bos_token_id)

    @property
    def normalize(self) -> bool:
        """True where scores are log-probabilities (beam search), False where they are logits (greedy search)."""
        return self.num_beams > 1 and (self.sampling is None or self.samples_beams)

    @property
    def fill_token_id(self) -> int:
        """The token after the end of a row in beam search.

        It is the pad token, or the end-of-sequence token where that is 0; in diverse beam search and with
        forced words always the pad token.
        """
        if (self.num_beam_groups > 1 or self.force_words_ids) and self.pad_token_id is not None:
            return self.pad_token_id
        return (self.pad_token_id or self.eos_token_ids[0]) if self.eos_token_ids else -1


def resolve_options(
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    vocab_size: int,
    max_positions: int,
    prompt_length: int | None = None,
) -> GenerationOptions:
    """Merge the checkpoint's settings with the caller's, as transformers does.

    ``max_new_tokens`` and ``min_new_tokens`` override ``max_length`` and ``min_length``, whatever their sources.
    Without any maximum, 20 new tokens are made.

    Parameters
    ----------
    defaults, overrides : mapping
        The checkpoint's settings and the caller's, by transformers' field names, and the caller's
        ``generation_config``. None is "not set"; in ``overrides`` it unsets all fields but `NEEDED`.
    vocab_size : int
        Tokens that the model scores.
    max_positions : int
        Positions of the decoder.
    prompt_length : int, optional
        Tokens that every row of a decoder-only model begins with, padding included. None for rows that begin with a
        start token.

    Returns
    -------
    GenerationOptions

    Raises
    ------
    GenerationError
        A setting is unknown, not supported, or impossible.
    """
    return resolve_layers(
        layers(defaults, overrides), vocab_size=vocab_size, max_positions=max_positions, prompt_length=prompt_length
    )


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
    """Merge layers of settings, as `resolve_options` does.

    Parameters
    ----------
    given : sequence of Layer
        The checkpoint's settings first, the call's last.
    vocab_size, max_positions, prompt_length
        Those of `resolve_options`.
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
    if sampling is not None and samples_beams:
        sampling = sampling.for_beams(len(eos))
    elif sampling is not None:
        num_beams = returned
    bos, pad, start = (fields.token(name) for name in ("bos_token_id", "pad_token_id", "decoder_start_token_id"))
    start = bos if start is None else start
    if prompt_length is not None:
        start = None
    elif start is None:
        raise GenerationError("decoder_start_token_id is not set, nor is bos_token_id; pass decoder_start_token_id=...")
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
        scoring=read_scoring(fields, log_probabilities=num_beams > 1 and (sampling is None or samples_beams)),
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
    for name, forced in (("forced_bos_token_id", forced_bos), ("forced_eos_token_id", options.forced_eos_token_ids)):
        if forced and set(forced) <= set(options.suppress_tokens):
            raise fields.error(name, "is also in suppress_tokens, so nothing could follow", "drop one of the two")
