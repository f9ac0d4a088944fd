"""Outputs and events as the arrays that clients get."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.inputs.result import page_records, segment_records
from tightbeam.deploy.serving.protocol.messages import FoundSegment, Row, Token
from tightbeam.deploy.serving.protocol.tensors import (
    ALTERNATIVE_IDS,
    ALTERNATIVE_SCORES,
    ATTENTION,
    FINISH_REASON,
    FINISHED,
    INDEX,
    LANGUAGE,
    LANGUAGE_PROBABILITY,
    NEW_TOKENS,
    OUTPUT_IDS,
    OUTPUT_LENGTHS,
    PAGES,
    REPORTS,
    SCORES,
    SEGMENTS,
    SOURCE_TOKENS,
    TEXT,
    TOKEN_SCORES,
    TRUNCATED_SIDE,
    TRUNCATED_TOKENS,
)

__all__ = ["tensors_of", "tensors_of_event"]


def tensors_of_event(event: Token | FoundSegment | Row) -> dict[str, Array]:
    """Convert an event of a stream to the arrays of a response, with the row's INDEX, and FINISHED for a `Row`."""
    output = event.output if isinstance(event, Row) else _part(event)
    made = tensors_of([output], event.fill if isinstance(event, Row) else 0)
    return {
        **made,
        INDEX: np.array([[event.row]], np.int32),
        FINISHED: np.array([[isinstance(event, Row)]], np.bool_),
    }


def _part(event: Token | FoundSegment) -> Output:
    """Return the output of a response that precedes the last one of its row."""
    if isinstance(event, Token):
        return Output([[event.token]], None, [event.text], new_tokens=1)
    tokens = event.segment.tokens
    return Output([tokens], None, [event.text], len(tokens), segments=[event.segment])


def tensors_of(outputs: Sequence[Output], fill: int) -> dict[str, Array]:
    """Convert outputs to arrays by the names of Triton's outputs.

    Parameters
    ----------
    outputs
        The outputs of b rows, S sequences each.
    fill
        The token that pads sequences.

    Returns
    -------
    dict
        TEXT bytes [b, S]; SCORES float32 [b, S], if all rows have scores; OUTPUT_IDS int64 [b, S, T], T at least 1;
        OUTPUT_LENGTHS int32 [b, S], their lengths without padding; FINISH_REASON bytes [b, S];
        SOURCE_TOKENS and NEW_TOKENS int32 [b, 1]; TRUNCATED_TOKENS int32 [b, 1] and TRUNCATED_SIDE bytes [b, 1], if a
        row was cut; REPORTS bytes [b, 1], if a row has a glossary's; if they were asked for
        TOKEN_SCORES float32 [b, S, T], ALTERNATIVE_IDS int64 [b, S, T, n] and ALTERNATIVE_SCORES float32 [b, S, T, n],
        and ATTENTION float32 [b, S, T, N];
        SEGMENTS or PAGES bytes [b, 1], if a row has segments or pages; LANGUAGE bytes [b, 1] and LANGUAGE_PROBABILITY
        float32 [b, 1], if a row has a language.

    Notes
    -----
    No array is empty: over HTTP, Triton 24.10 never frees what it allocates for an empty output, 0.1 kB for each of
    every response.
    """
    b, S = len(outputs), len(outputs[0].sequences)
    lengths = np.array([[len(row) for row in output.sequences] for output in outputs], np.int32)
    ids = np.full((b, S, max(1, int(lengths.max()))), fill, np.int64)
    for place, output in enumerate(outputs):
        for index, row in enumerate(output.sequences):
            ids[place, index, : len(row)] = row
    texts = [[text.encode() for text in output.texts or [""] * S] for output in outputs]
    ends: list[Sequence[str]] = [output.finish_reasons or [""] * S for output in outputs]
    reasons = [[reason.encode() for reason in row] for row in ends]
    found = {TEXT: np.array(texts, np.object_), OUTPUT_IDS: ids, OUTPUT_LENGTHS: lengths}
    if all(output.scores is not None for output in outputs):  # a recording of several windows has no score
        found[SCORES] = np.array([output.scores for output in outputs], np.float32)
    found[FINISH_REASON] = np.array(reasons, np.object_)
    found[SOURCE_TOKENS] = np.array([[output.source_tokens] for output in outputs], np.int32)
    found[NEW_TOKENS] = np.array([[output.new_tokens] for output in outputs], np.int32)
    for name, records in (
        (SEGMENTS, [output.segments and segment_records(output.segments) for output in outputs]),
        (PAGES, [output.pages and page_records(output.pages) for output in outputs]),
        (REPORTS, [output.reports for output in outputs]),
    ):
        if any(record is not None for record in records):
            found[name] = np.array([[json.dumps(each, ensure_ascii=False).encode()] for each in records], np.object_)
    if any(output.cut for output in outputs):
        found[TRUNCATED_TOKENS] = np.array([[output.cut] for output in outputs], np.int32)
        found[TRUNCATED_SIDE] = np.array([[(output.cut_side or "").encode()] for output in outputs], np.object_)
    if any(output.language is not None for output in outputs):
        found[LANGUAGE] = np.array([[(output.language or "").encode()] for output in outputs], np.object_)
        found[LANGUAGE_PROBABILITY] = np.array([[output.language_probability or 0] for output in outputs], np.float32)
    return {**found, **_of_tokens(outputs, ids.shape)}


def _of_tokens(outputs: Sequence[Output], shape: tuple[int, ...]) -> dict[str, Array]:
    """Return the tensors with scores of single tokens, if any, for OUTPUT_IDS of a ``shape`` [b, S, T]."""
    found: dict[str, Array] = {}
    if outputs[0].token_scores is not None:
        found[TOKEN_SCORES] = np.zeros(shape, np.float32)
        for place, output in enumerate(outputs):
            for index, own in enumerate(output.token_scores or []):
                found[TOKEN_SCORES][place, index, : len(own)] = [score or 0 for score in own]
    if outputs[0].alternatives is not None:
        each = [output.alternatives or [] for output in outputs]
        n = max(1, *(best.most for rows in each for best in rows))
        found[ALTERNATIVE_IDS] = np.full((*shape, n), -1, np.int64)
        found[ALTERNATIVE_SCORES] = np.zeros((*shape, n), np.float32)
        for place, rows in enumerate(each):
            for index, best in enumerate(rows):
                tokens, values = best.tokens[:, :n], best.scores[:, :n]
                at = place, index, slice(len(best)), slice(tokens.shape[1])
                found[ALTERNATIVE_IDS][at] = tokens
                found[ALTERNATIVE_SCORES][at] = np.where(tokens >= 0, values, 0)
    if outputs[0].attentions is not None:
        N = max(output.source_tokens for output in outputs)
        found[ATTENTION] = np.zeros((*shape, N), np.float32)
        for place, output in enumerate(outputs):
            for index, weights in enumerate(output.attentions or []):
                found[ATTENTION][place, index, : weights.shape[0], : weights.shape[1]] = weights
    return found
