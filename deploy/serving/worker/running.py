"""The requests that a worker runs: their samples share a scheduler, and each request gets events of its own."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.errors import JSON, BundleError, GenerationError, InputError, message_for
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import text_of
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, FinishedSample
from tightbeam.deploy.search import SearchResult
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
from tightbeam.deploy.serving.worker.parsing import ParsingThreads
from tightbeam.deploy.serving.worker.requests import ParsedRequest, RequestParser
from tightbeam.deploy.text.detokenizer import IncrementalDetokenizer

__all__ = ["RunningRequests"]

REPORT_SECONDS = 0.5
"""Longest time between two reports, if there are no events."""
PARSING_SECONDS = 0.02
"""Longest wait for a parsed request in a turn, if no sample runs."""
SHARE = 4
"""The windows of one recording take this part of the places at most: a quarter."""


@dataclass(eq=False)
class _OpenRow:
    """A row without a result.

    ``alone``: its samples run in batches of their own. ``waiting``: samples that the scheduler does not have yet.
    ``running``: number of samples that it has. ``segments``: number of segments sent. ``has_text``: one has text.
    """

    request: ParsedRequest
    row: int
    input: OpenInput
    alone: bool
    waiting: deque[Sample] = field(default_factory=deque)
    running: int = 0
    segments: int = 0
    has_text: bool = False


@dataclass(eq=False)
class _Running:
    """A sample without a result: a row's only one, or a window of a recording."""

    owner: _OpenRow
    sample: Sample
    detokenizer: IncrementalDetokenizer | None = None
    streamed: int = 0


class RunningRequests:
    """Runs requests as they come.

    Every row of a request that is neither refused nor cancelled gets one `Row`, as soon as its result is final.

    Parameters
    ----------
    model
        The loaded model.
    max_rows
        The most rows (samples x beams) that take steps together.
    stream
        Send a `Token` for each token of greedy search, and a `FoundSegment` for each segment of a recording, too.
    send
        Function that takes the events, and the work that was done since its last call.
    """

    def __init__(self, model: Model, *, max_rows: int, stream: bool, send: Callable[[Report], None]) -> None:
        self._model, self._stream, self._send, self._max_rows = model, stream, send, max_rows
        self._scheduler = model.scheduler(max_rows, self)
        self._parser = RequestParser(model, max_rows)
        self._parsing = ParsingThreads(self._parser.parse, self._announce)
        self._sending = threading.Lock()
        self._samples: dict[int, _Running] = {}
        self._events: list[Event] = []
        self._undecoded: list[tuple[_OpenRow, BundleError]] = []  # rows whose tokens the tokenizer cannot decode
        self._tokens = 0
        self._reported = time.monotonic()

    @property
    def active(self) -> bool:
        """True if a turn has something to do."""
        return self._scheduler.active or self._parsing.active

    def add(self, request: Request) -> None:
        """Add a request, which is run in later turns. One that cannot be run is refused."""
        if not self._parser.is_quick(request):
            self._parsing.put(request)
            return
        try:
            parsed = self._parser.parse(request)
        except Exception as error:  # a defect must not end the worker
            self._refuse(request.number, error)
            return
        self._start(request, parsed)

    def cancel(self, number: int) -> None:
        """Drop a request by its number. It has no events from then on."""
        self._parsing.cancel(number)
        for own in [own for own, running in self._samples.items() if running.owner.request.number == number]:
            self._scheduler.cancel(own)
            self._samples.pop(own).owner.input.close()

    def turn(self) -> None:
        """Take one turn of the scheduler, and send its events."""
        for request, parsed in self._parsing.take(0 if self._scheduler.active else PARSING_SECONDS):
            self._events.append(Reading(request.number, ended=True))
            if isinstance(parsed, Exception):
                self._refuse(request.number, parsed)
            else:
                self._start(request, parsed)
        for ended in self._scheduler.turn():
            running = self._samples.pop(ended.number, None)
            if running is None:
                continue  # of a request that was refused in this turn
            if isinstance(ended, FailedSample):
                self._fail(running.owner, ended.error)
            else:
                self._take(running.owner, ended)
        for owner, error in self._undecoded:
            self._fail(owner, error)
        self._undecoded.clear()
        if self._events or not self.active or time.monotonic() > self._reported + REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        """Send the events that were not sent, and the work that was done."""
        self._reported = time.monotonic()
        work = self._scheduler.work.take()
        events, self._events, tokens, self._tokens = self._events, [], self._tokens, 0
        with self._sending:
            self._send(Report(tuple(events), Stats(**vars(work), tokens=tokens)))

    def _announce(self, number: int) -> None:
        """Report that a request's files or texts are about to be read, because that may end this process."""
        with self._sending:
            self._send(Report((Reading(number),), Stats()))

    def _refuse(self, number: int, error: Exception) -> None:
        if isinstance(error, BundleError | InputError | GenerationError):
            message = message_for(JSON, error)
        else:
            traceback.print_exception(error)
            message = f"generation failed ({type(error).__name__}: {error}); this is a defect of Tightbeam"
        self._events.append(Refused(number, message, client_error=isinstance(error, InputError | GenerationError)))

    def _start(self, request: Request, parsed: ParsedRequest) -> None:
        owners = [_OpenRow(parsed, row, opened, request.alone) for row, opened in enumerate(parsed.rows)]
        for owner in owners:
            self._run(owner, owner.input.samples)
        for owner in owners:
            if owner.input.done:  # a recording of silence
                self._finish(owner)

    def _run(self, owner: _OpenRow, samples: Sequence[Sample]) -> None:
        """Queue the samples of a row, and start as many of them as its share of the scheduler's rows allows."""
        owner.waiting.extend(samples)
        share = max(1, self._max_rows // owner.request.options.num_beams // SHARE)
        while owner.waiting and owner.running < share:
            sample = owner.waiting.popleft()
            owner.running += 1
            self._samples[sample.number] = _Running(owner, sample)
            self._scheduler.add(replace(sample, alone=True) if owner.alone else sample)

    def _take(self, owner: _OpenRow, finished: FinishedSample) -> None:
        """Take the result of a sample, and run the row's next samples."""
        owner.running -= 1
        self._run(owner, owner.input.take(finished.number, finished.result))
        try:
            self._stream_segments(owner)
        except BundleError as error:  # of the tokenizer
            self._fail(owner, error)
            return
        if owner.input.done:
            self._finish(owner)

    def _finish(self, owner: _OpenRow) -> None:
        owner.input.close()
        try:
            if owner.input.failure is not None:
                raise owner.input.failure
            output = owner.input.output(self._model)
        except (BundleError, InputError, GenerationError) as error:
            self._fail(owner, error)
            return
        self._tokens += sum(len(row) for row in output.sequences)
        self._events.append(Row(owner.request.number, owner.row, output, owner.request.options.pad_token_id or 0))

    def _fail(self, owner: _OpenRow, error: Exception) -> None:
        """Refuse the request of a row."""
        self.cancel(owner.request.number)
        owner.input.close()
        self._refuse(owner.request.number, error)

    # The events of the scheduler

    def on_started(self, samples: Sequence[int]) -> None:
        """Report the requests whose samples are about to run, because that may end this process."""
        started = [self._samples[number] for number in samples]
        for running in started:  # a sample whose batch failed begins again
            running.detokenizer, running.streamed = None, 0
        self._events += [Started(number) for number in dict.fromkeys(each.owner.request.number for each in started)]
        self.report()

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        cancelled = np.zeros(len(samples), np.bool_)
        if self._stream and tokens is not None:
            for place, (number, token) in enumerate(zip(samples.tolist(), tokens.tolist(), strict=True)):
                running = self._samples.get(number)
                if running is None or not running.owner.input.is_one_sample:  # windows have no order of tokens
                    continue
                try:
                    self._stream_token(running, token)
                except BundleError as error:  # of the tokenizer
                    self._undecoded.append((running.owner, error))
                    cancelled[place] = True
        return cancelled

    def on_finished(self, sample: int, result: SearchResult) -> None:
        """Do nothing: `turn` takes the results."""

    def _stream_segments(self, owner: _OpenRow) -> None:
        """Send the segments of the windows that are done."""
        if not self._stream or owner.input.failure is not None:
            return
        for segment in owner.input.new_segments(self._model):
            text = text_of(self._model, segment.tokens) if self._model.has_tokenizer else ""
            text = text if owner.has_text else text.lstrip()
            owner.segments, owner.has_text = owner.segments + 1, owner.has_text or bool(text)
            self._events.append(FoundSegment(owner.request.number, owner.row, owner.segments, segment, text))

    def _stream_token(self, running: _Running, token: int) -> None:
        text = ""
        if self._model.has_tokenizer:
            if running.detokenizer is None:
                running.detokenizer = IncrementalDetokenizer(lambda tokens: text_of(self._model, tokens))
            text = running.detokenizer.add(token)
        running.streamed += 1
        owner = running.owner
        self._events.append(Token(owner.request.number, owner.row, running.streamed, token, text))
