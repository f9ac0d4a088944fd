"""The output of one input, as users read it: token ids without padding, and text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, TypeVar

import numpy as np

from tightbeam.deploy.arrays import Floats
from tightbeam.deploy.generation.spoken_language import PROMPTS, spoken_language
from tightbeam.deploy.inputs.token_alternatives import TokenAlternatives
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import FinishReason, Scored, SearchResult
from tightbeam.deploy.text.detokenizer import IncrementalDetokenizer, RemovedText, StrippedText, TextFilter
from tightbeam.deploy.text.scripts import join_texts
from tightbeam.deploy.text.truncation import Side

__all__ = [
    "Output",
    "TextSegment",
    "TextWord",
    "TokenAlternatives",
    "TokenScores",
    "detokenizer_of",
    "join",
    "language_of",
    "output_of",
    "text_of",
]

Each = TypeVar("Each")
TIMESTAMP = re.compile(r"<\|\d+\.\d+\|>")
"""A timestamp in the text of Whisper's tokenizer."""
BEGUN = re.compile(r"<(\|(\d+(\.(\d+\|?)?)?)?)?\Z")
"""The beginning of a timestamp at the end of a text."""

TokenScores: TypeAlias = list[float | None]
"""A score for each token of a sequence; None for a token that was not generated."""


@dataclass(frozen=True)
class TextWord:
    """A word of a recording, as users read it.

    Attributes
    ----------
    word : str
        The word with the space before it and the punctuation around it.
    start_s, end_s : float
        Seconds from the beginning of the recording.
    probability : float
        Mean of the probabilities of its tokens, each among the tokens that the score processors allow.
    """

    word: str
    start_s: float
    end_s: float
    probability: float


@dataclass(frozen=True)
class TextSegment:
    """A part of a recording, as users read it.

    Attributes
    ----------
    start_s, end_s : float
        Seconds from the beginning of the recording.
    tokens : list of int
        Its tokens, timestamps among them.
    text : str or None
        None if the bundle has no tokenizer.
    token_timestamps : list of float or None
        Seconds from the beginning of the recording at which each token ends; None if they were not asked for.
    words : list of TextWord or None
        None if they were not asked for, or the bundle has no tokenizer.
    """

    start_s: float
    end_s: float
    tokens: list[int]
    text: str | None
    token_timestamps: list[float] | None = None
    words: list[TextWord] | None = None


@dataclass(frozen=True)
class Output:
    """The sequences of one input, best first.

    Attributes
    ----------
    sequences : list of list of int
        Token ids without padding: from the start token on, or after the prompt of a decoder-only model.
    scores : list of float or None
        One for each sequence; None in greedy search.
    texts : list of str or None
        One for each sequence; None if the bundle has no tokenizer.
    new_tokens : int
        Tokens generated in all sequences: after the start token, or after the prompt.
    token_scores : list of TokenScores or None
        The score of each token of each sequence; None if they were not asked for.
    alternatives : list of TokenAlternatives or None
        The best tokens in place of each token of each sequence; None if they were not asked for.
    attentions : list of float32 [T, N], or None
        For each sequence the attention of its T tokens to the N source tokens, by the mean of the alignment heads; 0
        for tokens that were not generated. None if they were not asked for.
    segments : list of TextSegment or None
        The segments of a recording that was transcribed by timestamps.
    pages : list of Output or None
        One output for each page of an image with several pages.
    language : str or None
        The code of a recording's language, such as "en", as it was given or found in the first window; None for a
        model of one language.
    language_probability : float or None
        Probability of the language that was found, among the model's languages; None if it was given, or if the
        runtime gives no scores of all tokens.
    finish_reasons : list of FinishReason or None
        One for each sequence: "end_token", "stop_string" or "length". For a recording of several windows, or an image
        of several pages, one for the last of them; None if no window was run.
    source_tokens : int
        Tokens of the source, or of a decoder-only model's prompt; 0 for a recording or an image.
    by_default_length : bool
        True if a sequence ended at the length limit that counts if nobody sets one.
    cut : int
        Tokens of the source that ``truncate`` cut off.
    cut_side : "left", "right" or None
        The side at which they were; None if nothing was cut.
    reports : list of str or None
        What could not be placed of a glossary; None without one.
    """

    sequences: list[list[int]]
    scores: list[float] | None
    texts: list[str] | None
    new_tokens: int = 0
    token_scores: list[TokenScores] | None = None
    alternatives: list[TokenAlternatives] | None = None
    attentions: list[Floats] | None = None
    segments: list[TextSegment] | None = None
    pages: list[Output] | None = None
    language: str | None = None
    language_probability: float | None = None
    finish_reasons: list[FinishReason] | None = None
    source_tokens: int = 0
    by_default_length: bool = False
    cut: int = 0
    cut_side: Side | None = None
    reports: list[str] | None = None


def output_of(model: Model, found: SearchResult, sample: Sample) -> Output:
    """Convert the result of one sample.

    Parameters
    ----------
    model
        The model that generated it.
    found
        The sample's sequences int64 [num_return_sequences, T], and their scores.
    sample
        The sample.
    """
    given = 0 if model.decoder_only else sample.options.beginning
    rows = zip(found.sequences[:, sample.prompt_length :].tolist(), found.new_tokens, strict=True)
    sequences: list[list[int]] = [row[: given + new] for row, new in rows]
    token_scores, alternatives = _of_tokens(found.scored, [len(row) for row in sequences], given)
    return Output(
        sequences,
        scores=None if found.scores is None else [float(np.float32(score)) for score in found.scores],
        texts=[text_of(model, row) for row in sequences] if model.has_tokenizer else None,
        new_tokens=sum(found.new_tokens),
        token_scores=token_scores,
        alternatives=alternatives,
        attentions=_attentions(found, given) if sample.options.return_attention else None,
        finish_reasons=list(found.finish_reasons),
        source_tokens=sample.source_tokens,
        by_default_length=not sample.options.limited_by and "length" in found.finish_reasons,
        language=language_of(model, sequences[0][: sample.options.beginning]),
        language_probability=found.language_probability,
    )


def _attentions(found: SearchResult, given: int) -> list[Floats] | None:
    """Return the attention [T, N] of each token of the sequences to the source. The first ``given`` tokens have 0."""
    rows = found.attentions or ()
    return [np.concatenate([np.zeros((given, own.shape[1]), np.float32), own]) for own in rows]


def language_of(model: Model, prompt: Sequence[int | None]) -> str | None:
    """Return the code of the language that a decoder prompt names; None for a model of one language."""
    generation = model.manifest.generation
    if PROMPTS in generation:
        return spoken_language(generation, prompt)
    tokens = set(prompt)
    table: Mapping[str, int] = generation.get("lang_to_id") or {}
    return next((name.strip("<|>") for name, token in table.items() if token in tokens), None)


def _of_tokens(
    scored: Scored, lengths: list[int], given: int
) -> tuple[list[TokenScores] | None, list[TokenAlternatives] | None]:
    """Return the scores and alternatives of each token of sequences of these ``lengths``. The first ``given`` tokens
    have None."""
    token_scores: list[TokenScores] | None = None
    alternatives: list[TokenAlternatives] | None = None
    head = [None] * given
    if scored.tokens is not None:
        rows = zip(scored.tokens.tolist(), lengths, strict=True)
        token_scores = [[*head, *own[: length - given]] for own, length in rows]
    if scored.alternatives is not None:
        best = zip(scored.alternatives.tokens, scored.alternatives.scores, lengths, strict=True)
        alternatives = [
            TokenAlternatives.behind(given, tokens[: length - given], values[: length - given])
            for tokens, values, length in best
        ]
    return token_scores, alternatives


def text_of(model: Model, sequence: Sequence[int]) -> str:
    """Return the text of a sequence, without the timestamps of a speech model.

    Source: transformers 5.24 `WhisperTokenizer.decode`, which removes timestamps from the text, so that the bytes on
    both sides of one do not join.
    """
    text = model.text.decode(sequence)
    return TIMESTAMP.sub("", text) if model.has_windows else text


def detokenizer_of(model: Model, *, stripped: bool = False) -> IncrementalDetokenizer:
    """Return a detokenizer whose pieces join to what `text_of` returns, or to that text ``stripped`` of whitespace.

    Raises
    ------
    InputError
        The bundle has no tokenizer.
    """
    filters: list[TextFilter] = [RemovedText(TIMESTAMP, BEGUN)] if model.has_windows else []
    filters += [StrippedText()] if stripped else []
    return IncrementalDetokenizer(model.text.decode, model.text.decoder_rules, filters)


def join(windows: Sequence[Output]) -> Output:
    """Join the best sequences of a recording's windows, or of the pages of an image, in their order.

    The windows have no common score, so the result has a score only if there is one window.
    """
    texts = [window.texts[0] for window in windows if window.texts]
    return Output(
        sequences=[[token for window in windows for token in window.sequences[0]]],
        scores=windows[0].scores if len(windows) == 1 else None,
        texts=[join_texts(texts)] if texts else None,
        new_tokens=sum(window.new_tokens for window in windows),
        token_scores=_joined([window.token_scores for window in windows], lambda parts: list(chain(*parts))),
        alternatives=_joined([window.alternatives for window in windows], TokenAlternatives.join),
        language=windows[0].language,
        language_probability=windows[0].language_probability,
        finish_reasons=windows[-1].finish_reasons and windows[-1].finish_reasons[:1],
        by_default_length=any(window.by_default_length for window in windows),
    )


def _joined(windows: Sequence[list[Each] | None], join: Callable[[list[Each]], Each]) -> list[Each] | None:
    """Join the scores or alternatives of the windows' best sequences in one."""
    if any(window is None for window in windows):
        return None
    return [join([window[0] for window in windows if window])]
