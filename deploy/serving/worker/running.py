"""The requests that a worker runs: their samples share a scheduler, and each request gets events of its own."""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tightbeam.deploy.errors import JSON, BundleError, GenerationError, InputError, message_for
from tightbeam.deploy.inputs.open_input import OpenInput, PartedInput
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.inputs.text_pieces import TextPieces
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, FinishedSample
from tightbeam.deploy.serving.protocol.log import log, log_exception
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
from tightbeam.deploy.serving.protocol.named_files import NO_FILES, NamedFiles
from tightbeam.deploy.serving.worker.parsing import THREADS, Job, ParsingThreads
from tightbeam.deploy.serving.worker.requests import ParsedRequest, RequestParser

__all__ = ["RunningRequests"]

REPORT_SECONDS = 0.5
"""Longest time between two reports, if there are no events."""
PARSING_SECONDS = 0.02
"""Longest wait for a parsed request in a turn, if no sample runs."""
PARTS_AHEAD = 4
"""The most parts of a row (pages, or parts of a recording) that are read and have no result."""
MOST_READ_BYTES = 1 << 28
"""No further part is read while the parts without a result take this many bytes."""
SHARE = 4
"""The windows of one recording take this part of the places at most: a quarter."""


@dataclass(eq=False)
class _OpenRow:
    """A row without a result.

    ``stream``: its tokens and segments are sent. ``alone``: its samples run in batches of their own. ``waiting``:
    samples that the scheduler does not have yet. ``running``: number of samples that it has. ``reading``: a thread
    reads its next part. ``read``: number of parts that were read and have no result. ``segments``: number of segments
    sent. ``pieces``: the text of these.
    """

    request: ParsedRequest
    row: int
    input: OpenInput
    stream: bool
    alone: bool
    waiting: deque[Sample] = field(default_factory=deque)
    running: int = 0
    reading: bool = False
    read: int = 0
    segments: int = 0
    pieces: TextPieces | None = None


@dataclass(eq=False)
class _Running:
    """A sample without a result: a row's only one, or a window of a recording."""

    owner: _OpenRow
    sample: Sample
    streamed: int = 0
    pieces: TextPieces | None = None

    @property
    def beginning(self) -> int:
        """Tokens of its sequences that are given, and not streamed."""
        return self.sample.prompt_length or self.sample.options.beginning

    @property
    def streams(self) -> bool:
        """True if its tokens are sent: they are those of its row, which has one sequence."""
        return self.owner.stream and self.owner.input.is_one_sample and self.sample.options.num_return_sequences == 1


class RunningRequests(NullEvents):
    """Runs requests as they come.

    Every row of a request that is neither refused nor cancelled gets one `Row`, as soon as its result is final. One
    that streams gets a `Token` for each token of a row of one sequence, as soon as no step can change it, and a
    `FoundSegment` for each segment of a recording, too.

    Parameters
    ----------
    model
        The loaded model.
    max_rows
        The most rows (samples x beams) that take steps together.
    max_request_rows
        The most rows (inputs) of a request; None for any number.
    send
        Function that takes the events, and the work that was done since its last call.
    files
        Files that requests may name.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_rows: int,
        max_request_rows: int | None = None,
        send: Callable[[Report], None],
        files: NamedFiles = NO_FILES,
    ) -> None:
        self._model, self._send, self._max_rows = model, send, max_rows
        self._scheduler = model.scheduler(max_rows, self)
        self._parser = RequestParser(model, max_rows, max_request_rows, files)
        self._parsing = ParsingThreads(self._announce)
        self._sending = threading.Lock()
        self._rows: dict[int, list[_OpenRow]] = {}  # by request
        self._parted: dict[
            int, list[_OpenRow]
        ] = {}  # those of several parts, too; the request that was read last is last
        self._read_bytes: dict[int, int] = {}  # of the parts that were read and have no result, by sample
        self._samples: dict[int, _Running] = {}
        self._events: list[Event] = []
        self._tokens = 0
        self._reported = time.monotonic()

    @property
    def active(self) -> bool:
        """True if a turn has something to do."""
        return self._scheduler.active or self._parsing.active or bool(self._rows)

    def add(self, request: Request) -> None:
        """Add a request, which is run in later turns. One that cannot be run is refused."""
        try:
            if not self._parser.is_quick(request):
                self._parsing.put(
                    Job(request.number, partial(self._parser.parse, request), partial(self._start_parsed, request))
                )
                return
            parsed = self._parser.parse(request)
        except Exception as error:  # a defect must not end the worker
            self._refuse(request.number, error)
            return
        self._start(request, parsed)

    @property
    def reading(self) -> bool:
        """True while a thread reads, be it for a request that was cancelled."""
        return self._parsing.working

    def release_buffers(self) -> None:
        """Free the memory of requests that have ended.

        A refused request's error, its frames and its job hold one another, and with them the file that was read; few
        objects of many megabytes do not let Python look for such cycles by itself.
        """
        gc.collect()
        self._scheduler.release_buffers()

    def close(self) -> None:
        """End the threads that read requests."""
        self._parsing.close()

    def cancel(self, number: int) -> None:
        """Drop a request by its number. It has no events from then on."""
        self._parsing.cancel(number)
        self._parted.pop(number, None)
        for owner in self._rows.pop(number, ()):
            owner.input.close()
            for sample in owner.input.samples:
                self._read_bytes.pop(sample.number, None)
                if self._samples.pop(sample.number, None) is not None:
                    self._scheduler.cancel(sample.number)

    def turn(self) -> None:
        """Take one turn of the scheduler, and send its events."""
        for job in self._parsing.take(0 if self._scheduler.active else PARSING_SECONDS):
            self._events.append(Reading(job.number, ended=True))
            job.then(job.outcome)
        self._read_parts()
        for ended in self._scheduler.turn():
            running = self._samples.pop(ended.number, None)
            if running is None:
                continue  # of a request that was refused in this turn
            if isinstance(ended, FailedSample):
                self._fail(running.owner, ended.error)
            else:
                self._take(running, ended)
        for number, running in [each for each in self._samples.items() if each[1].streams]:
            if number in self._samples:  # else its request was refused just now
                known = running.beginning + running.streamed
                self._stream_tokens(running, self._scheduler.certain(number, known).tolist())
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
        elif isinstance(error, OSError | MemoryError):  # a full disk for the features of a long recording
            log_exception(error)
            message = f"the server has no room for the request ({error or 'out of memory'}); send the request again"
        else:
            log_exception(error)
            message = f"generation failed ({type(error).__name__}: {error}); this is a defect of Tightbeam"
        self._events.append(Refused(number, message, client_error=isinstance(error, InputError | GenerationError)))

    def _start_parsed(self, request: Request, parsed: ParsedRequest | Exception) -> None:
        if isinstance(parsed, Exception):
            self._refuse(request.number, parsed)
        else:
            self._start(request, parsed)

    def _start(self, request: Request, parsed: ParsedRequest) -> None:
        owners = [
            _OpenRow(parsed, row, opened, request.stream, request.alone) for row, opened in enumerate(parsed.rows)
        ]
        self._rows[request.number] = list(owners)
        if parted := [owner for owner in owners if isinstance(owner.input, PartedInput)]:
            self._parted[request.number] = parted
        for owner in owners:
            self._run(owner, owner.input.samples)
        for owner in owners:
            if owner.input.done and request.number in self._rows:  # a recording of silence
                self._finish(owner)

    def _read_parts(self) -> None:
        """Have the next parts of rows read: one of each request at a time, in turn, as far as the limits allow."""
        idle = [number for number, rows in self._parted.items() if not any(owner.reading for owner in rows)]
        reading = len(self._parted) - len(idle)
        for number in idle:
            if reading >= THREADS or sum(self._read_bytes.values()) >= MOST_READ_BYTES:
                return
            rows = self._parted[number]
            owner = next((each for each in rows if each.input.unread and each.read < PARTS_AHEAD), None)
            if owner is not None:
                assert isinstance(owner.input, PartedInput)
                owner.reading = True
                reading += 1
                self._parsing.put(Job(number, owner.input.read_part, partial(self._start_part, owner)))
                self._parted[number] = self._parted.pop(number)

    def _start_part(self, owner: _OpenRow, part: Sample | Exception) -> None:
        """Run a part that was read, or refuse the request of one that cannot be."""
        owner.reading = False
        if isinstance(part, Exception):
            if isinstance(part, InputError) and len(owner.request.rows) > 1:
                part = part.at(f"row {owner.row}")
            self._fail(owner, part)
            return
        owner.read += 1
        self._read_bytes[part.number] = part.source.nbytes
        owner.input.samples.append(part)
        self._run(owner, [part])

    def _run(self, owner: _OpenRow, samples: Sequence[Sample]) -> None:
        """Queue the samples of a row, and start as many of them as its share of the scheduler's rows allows."""
        owner.waiting.extend(samples)
        share = max(1, self._max_rows // owner.request.options.num_beams // SHARE)
        while owner.waiting and owner.running < share:
            sample = owner.waiting.popleft()
            owner.running += 1
            self._samples[sample.number] = _Running(owner, sample)
            self._scheduler.add(replace(sample, alone=True) if owner.alone else sample)

    def _take(self, running: _Running, finished: FinishedSample) -> None:
        """Take the result of a sample, and run the row's next samples."""
        owner = running.owner
        owner.running -= 1
        if self._read_bytes.pop(finished.number, None) is not None:
            owner.read -= 1
        self._run(owner, owner.input.take(finished.number, finished.result))
        try:
            self._stream_segments(owner)
        except BundleError as error:  # of the tokenizer
            self._fail(owner, error)
            return
        if owner.input.done:
            self._finish(owner, running if running.streams else None)

    def _finish(self, owner: _OpenRow, streamed: _Running | None = None) -> None:
        """Send the result of a row, behind the last tokens of its ``streamed`` sample."""
        owner.input.close()
        for by_request in (self._rows, self._parted):
            rows = by_request.get(owner.request.number, [])
            if owner in rows:
                rows.remove(owner)
            if not rows:
                by_request.pop(owner.request.number, None)
        try:
            if owner.input.failure is not None:
                raise owner.input.failure
            output = owner.input.output(self._model)
        except (BundleError, InputError, GenerationError) as error:
            self._fail(owner, error)
            return
        if streamed is not None:
            given = 0 if self._model.decoder_only else streamed.sample.options.beginning
            if not self._stream_tokens(streamed, output.sequences[0][given + streamed.streamed :], output):
                return
        self._tokens += sum(len(row) for row in output.sequences)
        fill = owner.request.options.pad_token_id or 0
        result = owner.input.result
        for note in result.notes:
            log(f"tightbeam: note: the recording of a request: {note}")
        row = Row(owner.request.number, owner.row, output, fill, result.seconds, tuple(result.notes))
        self._events.append(row)

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
            running.pieces, running.streamed = None, 0
        self._events += [Started(number) for number in dict.fromkeys(each.owner.request.number for each in started)]
        self.report()

    def _stream_segments(self, owner: _OpenRow) -> None:
        """Send the segments of the windows that are done."""
        if not owner.stream or owner.input.failure is not None:
            return
        segments = owner.input.new_segments(self._model)
        texts = [""] * len(segments)
        if segments and self._model.has_tokenizer:
            owner.pieces = owner.pieces or TextPieces(self._model)
            texts = [owner.pieces.of_segments([segment]) for segment in segments]
            if owner.input.done and (whole := owner.input.output(self._model).texts):
                texts[-1] += owner.pieces.rest(whole[0])
        for segment, text in zip(segments, texts, strict=True):
            owner.segments += 1
            self._events.append(FoundSegment(owner.request.number, owner.row, owner.segments, segment, text))

    def _stream_tokens(self, running: _Running, tokens: Sequence[int], output: Output | None = None) -> bool:
        """Send the next tokens of a row. The last ones, of its ``output``, have the rest of its text. Returns False if
        the tokenizer cannot decode them, and the request was refused."""
        owner = running.owner
        try:
            texts = self._texts(running, tokens, output)
        except BundleError as error:
            self._fail(owner, error)
            return False
        if texts and output is not None and output.texts and running.pieces is not None:
            texts[-1] += running.pieces.rest(output.texts[0])
        for token, text in zip(tokens, texts, strict=True):
            running.streamed += 1
            self._events.append(Token(owner.request.number, owner.row, running.streamed, token, text))
        return True

    def _texts(self, running: _Running, tokens: Sequence[int], output: Output | None) -> list[str]:
        """Return the text that each token adds, the first one with that of the given tokens of an output."""
        if not (tokens and self._model.has_tokenizer):
            return [""] * len(tokens)
        before = ""
        if running.pieces is None:
            running.pieces = TextPieces(self._model)
            known = running.sample.prompt_length
            row = (
                self._scheduler.certain(running.sample.number, known).tolist()
                if output is None
                else output.sequences[0]
            )
            before = "".join(map(running.pieces.add, row[: running.beginning - known]))
        texts = list(map(running.pieces.add, tokens))
        return [before + texts[0], *texts[1:]]
