"""Requests as the backend sends them to the worker, a log of their events, and what a runner gives without a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.output import Output, output_of
from tightbeam.deploy.serving.protocol.messages import (
    Event,
    FoundSegment,
    Reading,
    Refused,
    Report,
    Request,
    Row,
    Started,
    Stats,
    Token,
)
from tightbeam.deploy.serving.protocol.tensors import AUDIO, INPUT_IDS, LENGTHS, TEXT
from tightbeam.deploy.serving.worker.running import RunningRequests

__all__ = ["EventLog", "alone", "assert_same", "audio_request", "ids_request", "run", "text_request"]


def text_request(number: int, *rows: str | bytes, **parameters: Any) -> Request:
    encoded = [row.encode() if isinstance(row, str) else row for row in rows]
    return Request(number, {TEXT: np.array(encoded, np.object_).reshape(-1, 1)}, json.dumps(parameters))


def ids_request(number: int, *rows: Sequence[int], **parameters: Any) -> Request:
    """A request of token ids. Rows of several lengths are padded with an invalid id, and have LENGTHS."""
    padded, lengths = _padded([np.array(row, np.int64) for row in rows], -7)
    inputs = {INPUT_IDS: padded} if len(set(map(len, rows))) == 1 else {INPUT_IDS: padded, LENGTHS: lengths}
    return Request(number, inputs, json.dumps(parameters))


def audio_request(number: int, *waveforms: Any, **parameters: Any) -> Request:
    padded, lengths = _padded(list(waveforms), np.nan)
    return Request(number, {AUDIO: padded, LENGTHS: lengths}, json.dumps(parameters))


def _padded(rows: Sequence[Any], fill: float) -> tuple[Any, Any]:
    padded = np.full((len(rows), max(map(len, rows))), fill, rows[0].dtype)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded, np.array([[len(row)] for row in rows], np.int32)


class EventLog:
    """The events and stats of `RunningRequests`. ``started``: the requests whose samples began to run."""

    def __init__(self, reports: Sequence[Report]) -> None:
        events: list[Event] = [event for report in reports for event in report.events]
        self.started = [event.number for event in events if isinstance(event, Started)]
        self.events = [event for event in events if not isinstance(event, Started | Reading)]
        self.stats = Stats()
        for report in reports:
            for name, amount in vars(report.stats).items():
                setattr(self.stats, name, getattr(self.stats, name) + amount)

    def outputs(self, number: int) -> list[Output]:
        """The outputs of a request, by row; each came exactly once."""
        rows = {event.row: event.output for event in self.events if isinstance(event, Row) and event.number == number}
        assert sum(isinstance(event, Row) and event.number == number for event in self.events) == len(rows)
        assert list(sorted(rows)) == list(range(len(rows)))
        return [rows[row] for row in range(len(rows))]

    def refusals(self) -> dict[int, Refused]:
        refused = [event for event in self.events if isinstance(event, Refused)]
        found = {event.number: event for event in refused}
        assert len(found) == len(refused)
        return found

    def tokens(self, number: int, row: int = 0) -> list[Token]:
        """The streamed tokens of one row; none comes after the row itself."""
        own = [event for event in self.events if not isinstance(event, Refused) and event.number == number]
        of_row = [event for event in own if event.row == row]
        tokens = [event for event in of_row if isinstance(event, Token)]
        assert of_row[: len(tokens)] == tokens
        return tokens

    def segments(self, number: int, row: int = 0) -> list[FoundSegment]:
        """The streamed segments of one row of a recording, in their order."""
        found = [event for event in self.events if isinstance(event, FoundSegment)]
        own = [event for event in found if (event.number, event.row) == (number, row)]
        assert [event.place for event in own] == list(range(1, len(own) + 1))
        return own


def run(
    runner: Runner,
    requests: Sequence[Request],
    *,
    max_rows: int = 1000,
    stream: bool = False,
    cancelled: Callable[[], Collection[int]] = tuple,
    seen: list[Event] | None = None,
) -> EventLog:
    """Run requests that come at once. ``cancelled``: the requests that are, asked before every turn. ``seen``: gets the
    events as they come."""
    reports: list[Report] = []

    def send(report: Report) -> None:
        reports.append(report)
        if seen is not None:
            seen.extend(report.events)

    running = RunningRequests(runner.model, max_rows=max_rows, send=send)
    for request in requests:
        running.add(replace(request, stream=stream))
    gone: set[int] = set()
    while running.active:
        for number in set(cancelled()) - gone:
            running.cancel(number)
            gone.add(number)
        running.turn()
    running.report()
    running.close()
    assert not running._samples
    return EventLog(reports)


def alone(runner: Runner, tokens: Sequence[int], settings: dict[str, Any]) -> Output:
    """The output of one source, run alone."""
    sample = runner.model.sample(0, tokens, settings)
    return output_of(runner.model, runner.generate([tokens], **settings), sample)


def assert_same(found: Output, expected: Output) -> None:
    assert (found.sequences, found.texts) == (expected.sequences, expected.texts)
    assert (found.finish_reasons, found.new_tokens) == (expected.finish_reasons, expected.new_tokens)
    if expected.scores is None or found.scores is None:
        assert found.scores is expected.scores
    else:
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
