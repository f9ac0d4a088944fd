"""Responses: a request of Triton's is read, and the worker's events become its responses."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.inputs.result import page_records, segment_records
from tightbeam.deploy.serving.protocol.log import log, log_exception
from tightbeam.deploy.serving.protocol.messages import Event, FoundSegment, Refused, Request, Row, Token
from tightbeam.deploy.serving.protocol.parameters import BUNDLE, DEADLINE, MAX_PARAMETER_BYTES, TRIES
from tightbeam.deploy.serving.protocol.tensors import (
    ALTERNATIVE_IDS,
    ALTERNATIVE_SCORES,
    FINISH_REASON,
    FINISHED,
    INDEX,
    LANGUAGE,
    LANGUAGE_PROBABILITY,
    NEW_TOKENS,
    OUTPUT_IDS,
    OUTPUT_LENGTHS,
    PAGES,
    SCORES,
    SEGMENTS,
    SOURCE_TOKENS,
    TEXT,
    TOKEN_SCORES,
    TRUNCATED_SIDE,
    TRUNCATED_TOKENS,
)

__all__ = ["Outcome", "Responder", "tensors_of"]

Outcome = Literal["finished", "refused", "failed", "cancelled"]
"""Outcome of a request. Refused: an error of the client. Failed: an error of the server."""
NUMPY = (
    f"this Triton's Python backend cannot read numpy {np.__version__}; pip install 'numpy<2' for the Python that it "
    "runs, or take Triton 24.11 or newer"
)
"""Error of a Triton before 24.11, which reads numpy 2 as if it were numpy 1: every element of an array is the first
one. The warm-up request therefore holds numbers; a text would crash the process there."""


FOLDERS = re.compile(r"(?<![\w.~:/\\-])/(?:[\w.@+~-]+/)+(?=[\w.@+~-])")
"""The folders of an absolute path."""
MODEL_FOLDERS = rf"\d+|{BUNDLE}|{TRIES}"
"""Names of folders in a served model's folder: a version, and what it has."""
MOST_BYTES = 1 << 28
"""Bytes of a request's inputs. Triton has them in memory already; further copies are made of those that are taken."""


def _bytes(array: Array) -> int:
    return sum(map(len, array.ravel().tolist())) if array.dtype == object else array.nbytes


def _deadline_s(parameters: str) -> float:
    """Return the request's own deadline; infinity if it has none. The worker refuses one that is wrong."""
    if DEADLINE in parameters and len(parameters) <= MAX_PARAMETER_BYTES:
        with suppress(ValueError, AttributeError, TypeError, RecursionError):
            deadline_s = float(json.loads(parameters).get(DEADLINE, math.inf))
            return deadline_s if deadline_s > 0 else math.inf
    return math.inf


class Responder:
    """The responses of one request.

    Parameters
    ----------
    request
        Triton's request.
    triton
        The module ``triton_python_backend_utils``.
    stream
        Send each row, each token that is certain, and each segment of a recording as a response of its own. Otherwise
        there is one response, when all rows are finished.
    folder
        The model's folder, whose path no client is told.
    """

    def __init__(self, request: Any, triton: Any, *, stream: bool, folder: str = "") -> None:
        self._request = request
        self._triton = triton
        self._stream = stream
        self._folder = folder
        self._sender = request.get_response_sender()
        self._wanted = frozenset(request.requested_output_names())
        self._rows: dict[int, Row] = {}
        self._streamed: dict[int, int] = {}  # tokens or segments that were sent, by row
        self.size = 1
        """Rows of the request."""
        self.deadline_s = math.inf
        """Seconds that the request asks for."""
        self.outcome: Outcome | None = None
        """None until the last response was sent."""

    @property
    def open(self) -> bool:
        """True until the last response was sent."""
        return self.outcome is None

    def read(self, number: int) -> Request | None:
        """Read the request for the worker. If it cannot be read, send the error and return None."""
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in self._request.inputs()}
            if any(0 in array.strides and array.size > 1 for array in inputs.values()):
                self.fail(NUMPY, client_error=False)
                return None
            if (size := sum(map(_bytes, inputs.values()))) > MOST_BYTES:
                problem = f"the request has {size:,} bytes, expected {MOST_BYTES:,} at most"
                self.fail(f"{problem}; send its rows as requests of their own", client_error=True)
                return None
            self.size = max((len(array) for array in inputs.values()), default=1)
            parameters = self._request.parameters()
            self.deadline_s = _deadline_s(parameters)
            return Request(number, inputs, parameters)
        except Exception as error:  # from Triton's decoding
            self.fail(f"the inputs cannot be read ({error})", client_error=True)
            return None

    def was_cancelled(self) -> bool:
        """Return True, once, if the client has cancelled the request, and send the last response."""
        try:
            if not self.open or not self._request.is_cancelled():
                return False
        except Exception:  # from Triton, such as full shared memory; it is asked again
            return False
        self._end("cancelled", "the request was cancelled", self._triton.TritonError.CANCELLED)
        return True

    def add(self, event: Event) -> None:
        """Send the worker's event, or hold it until all rows are finished. If Triton cannot take it, send an error."""
        if not self.open:
            return  # cancelled
        try:
            self._add(event)
        except Exception as error:  # from Triton's encoding, such as full shared memory
            self.fail(f"the response cannot be sent ({error})", client_error=False)

    def _add(self, event: Event) -> None:
        if isinstance(event, Refused):
            self.fail(event.message, client_error=event.client_error)
        elif isinstance(event, Token | FoundSegment):
            if event.place <= self._streamed.get(event.row, 0):
                return  # it was sent before its row was run again
            self._streamed[event.row] = event.place
            output = _part(event)
            self._send({**tensors_of([output], 0), **_stream_outputs(event.row, finished=False)}, last=False)
        elif isinstance(event, Row) and event.row not in self._rows:
            self._rows[event.row] = event
            last = len(self._rows) == self.size
            if self._stream:
                self._send(
                    {**tensors_of([event.output], event.fill), **_stream_outputs(event.row, finished=True)}, last=last
                )
            elif last:
                outputs = [self._rows[row].output for row in range(self.size)]
                self._send(tensors_of(outputs, event.fill), last=True)

    def fail(self, reason: str, *, client_error: bool) -> None:
        """Send an error as the last response. ``client_error``: the request is invalid; else the server failed."""
        if not self.open:
            return
        if client_error:
            self._end("refused", reason, self._triton.TritonError.INVALID_ARG)
        else:
            self._end("failed", reason, self._triton.TritonError.UNAVAILABLE)

    def _send(self, arrays: dict[str, Array], *, last: bool) -> None:
        tensors = [self._triton.Tensor(name, array) for name, array in arrays.items() if name in self._wanted]
        flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
        self._sender.send(self._triton.InferenceResponse(tensors), flags=flags)
        self.outcome = "finished" if last else None

    def _end(self, outcome: Outcome, reason: str, code: int) -> None:
        self.outcome = outcome
        told = without_folders(reason, self._folder)
        if outcome == "failed" and told != reason:
            log(f"tightbeam: a request has failed: {reason}")
        error = self._triton.TritonError(told, code)
        final = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            self._sender.send(self._triton.InferenceResponse(error=error), flags=final)
        except Exception as fault:  # no response can be sent any more; the other requests go on
            log_exception(fault)


def without_folders(message: str, folder: str) -> str:
    """Return a message without the folders of this machine: of each absolute path the last name is left.

    Parameters
    ----------
    message
    folder
        A folder whose path may have spaces and signs, which are not found otherwise; empty for none.
    """
    for own in {folder, os.path.realpath(folder)} if folder else ():
        message = re.sub(rf"{re.escape(own)}/(?:(?:{MODEL_FOLDERS})/)*", "", message)
    return FOLDERS.sub("", message)


def _part(event: Token | FoundSegment) -> Output:
    """Return the output of a response that precedes the last one of its row."""
    if isinstance(event, Token):
        return Output([[event.token]], None, [event.text], new_tokens=1)
    tokens = event.segment.tokens
    return Output([tokens], None, [event.text], len(tokens), segments=[event.segment])


def tensors_of(outputs: Sequence[Output], fill: int) -> dict[str, Array]:
    """Convert outputs to Triton's arrays.

    Parameters
    ----------
    outputs
        The outputs of b rows, S sequences each.
    fill
        The token that pads sequences.

    Returns
    -------
    dict
        TEXT bytes [b, S]; SCORES float32 [b, S], or [b, 0] in greedy search, and if a row has no score; OUTPUT_IDS
        int64 [b, S, T]; OUTPUT_LENGTHS int32 [b, S], their lengths without padding; FINISH_REASON bytes [b, S];
        SOURCE_TOKENS and NEW_TOKENS int32 [b, 1]; TRUNCATED_TOKENS int32 [b, 1] and TRUNCATED_SIDE bytes [b, 1], if a
        row was cut; if they were asked for
        TOKEN_SCORES float32 [b, S, T], ALTERNATIVE_IDS int64 [b, S, T, n] and ALTERNATIVE_SCORES float32 [b, S, T, n];
        SEGMENTS or PAGES bytes [b, 1], if a row has segments or pages; LANGUAGE bytes [b, 1] and LANGUAGE_PROBABILITY
        float32 [b, 1], if a row has a language.
    """
    b, S = len(outputs), len(outputs[0].sequences)
    lengths = np.array([[len(row) for row in output.sequences] for output in outputs], np.int32)
    ids = np.full((b, S, int(lengths.max())), fill, np.int64)
    for place, output in enumerate(outputs):
        for index, row in enumerate(output.sequences):
            ids[place, index, : len(row)] = row
    texts = [[text.encode() for text in output.texts or [""] * S] for output in outputs]
    scored = all(output.scores is not None for output in outputs)  # a recording of several windows has no score
    scores = np.array([(output.scores or []) if scored else [] for output in outputs], np.float32)
    ends: list[Sequence[str]] = [output.finish_reasons or [""] * S for output in outputs]
    reasons = [[reason.encode() for reason in row] for row in ends]
    found = {TEXT: np.array(texts, np.object_), SCORES: scores, OUTPUT_IDS: ids, OUTPUT_LENGTHS: lengths}
    found[FINISH_REASON] = np.array(reasons, np.object_)
    found[SOURCE_TOKENS] = np.array([[output.source_tokens] for output in outputs], np.int32)
    found[NEW_TOKENS] = np.array([[output.new_tokens] for output in outputs], np.int32)
    for name, records in (
        (SEGMENTS, [output.segments and segment_records(output.segments) for output in outputs]),
        (PAGES, [output.pages and page_records(output.pages) for output in outputs]),
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
        n = max(len(pairs or []) for rows in each for row in rows for pairs in row)
        found[ALTERNATIVE_IDS] = np.full((*shape, n), -1, np.int64)
        found[ALTERNATIVE_SCORES] = np.zeros((*shape, n), np.float32)
        for place, rows in enumerate(each):
            for index, row in enumerate(rows):
                for t, pairs in enumerate(row):
                    for rank, (token, score) in enumerate(pairs or []):
                        found[ALTERNATIVE_IDS][place, index, t, rank] = token
                        found[ALTERNATIVE_SCORES][place, index, t, rank] = score
    return found


def _stream_outputs(row: int, *, finished: bool) -> dict[str, Array]:
    return {INDEX: np.array([[row]], np.int32), FINISHED: np.array([[finished]], np.bool_)}
