"""The requests that a worker runs: their samples share a scheduler, and each request gets events of its own."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, FinishedSample
from tightbeam.deploy.serving.messages import Event, Refused, Report, Request, Row, Started, Stats, Token
from tightbeam.deploy.serving.requests import ParsedRequest, RequestParser
from tightbeam.deploy.text.detokenizer import IncrementalDetokenizer
from tightbeam.deploy.text.output import Output, join, output_of, text_of

__all__ = ["RunningRequests"]

REPORT_SECONDS = 0.5
"""Longest time between two reports of the work that was done, while there are no events."""


@dataclass(eq=False)
class _Running:
    """A sample without a result: a row of a request, or one of the windows of a row of audio."""

    request: ParsedRequest
    row: int
    window: int
    sample: Sample
    detokenizer: IncrementalDetokenizer | None = None
    streamed: int = 0


class RunningRequests:
    """Runs requests as they come.

    Every row of a request that is neither refused nor cancelled gets one `Row`, as soon as its result is final.

    Parameters
    ----------
    runner
        The model.
    max_rows
        The most rows (samples x beams) that take steps together.
    stream
        Send a `Token` for each token of greedy search, too.
    send
        Function that takes the events, and the work that was done since its last call.
    """

    def __init__(self, runner: Runner, *, max_rows: int, stream: bool, send: Callable[[Report], None]) -> None:
        self._runner, self._stream, self._send = runner, stream, send
        self._scheduler = runner.group_scheduler(max_rows, self)
        self._parser = RequestParser(runner, max_rows)
        self._samples: dict[int, _Running] = {}
        self._outputs: dict[tuple[int, int], dict[int, Output]] = {}  # by request and row, those of its windows
        self._events: list[Event] = []
        self._tokens = 0
        self._reported = time.monotonic()

    @property
    def active(self) -> bool:
        """True while a turn has something to do."""
        return self._scheduler.active

    def add(self, request: Request) -> None:
        """Add a request, which is run in later turns. One that cannot be run is refused."""
        try:
            parsed = self._parser.parse(request)
        except Exception as error:  # that of a defect must not end the worker
            self._refuse(request.number, error)
            return
        for row, samples in enumerate(parsed.rows):
            for window, sample in enumerate(samples):
                self._samples[sample.number] = _Running(parsed, row, window, sample)
                self._scheduler.add(replace(sample, alone=True) if request.alone else sample)

    def cancel(self, number: int) -> None:
        """Drop a request by its number. There are no events of it from then on."""
        for own in [own for own, running in self._samples.items() if running.request.number == number]:
            self._scheduler.cancel(own)
            del self._samples[own]
        self._outputs = {key: outputs for key, outputs in self._outputs.items() if key[0] != number}

    def turn(self) -> None:
        """Take one turn of the scheduler, and send its events."""
        for ended in self._scheduler.turn():
            if ended.number not in self._samples:
                continue  # of a request that was refused in this turn
            if isinstance(ended, FailedSample):
                number = self._samples[ended.number].request.number
                self.cancel(number)
                self._refuse(number, ended.error)
            else:
                self._finish(self._samples.pop(ended.number), ended)
        if self._events or not self.active or time.monotonic() > self._reported + REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        """Send the events that are left, and the work that was done."""
        self._reported = time.monotonic()
        work = self._scheduler.work.take()
        events, self._events, tokens, self._tokens = self._events, [], self._tokens, 0
        self._send(Report(tuple(events), Stats(**vars(work), tokens=tokens)))

    def _refuse(self, number: int, error: Exception) -> None:
        if isinstance(error, BundleError | InputError | GenerationError):
            message = str(error)
        else:
            traceback.print_exception(error)
            message = f"generation failed ({type(error).__name__}: {error}); this is a defect of Tightbeam"
        self._events.append(Refused(number, message, client_error=isinstance(error, InputError | GenerationError)))

    def _finish(self, running: _Running, finished: FinishedSample) -> None:
        request, sample = running.request, running.sample
        output = output_of(self._runner, finished.result, sample.options, sample.prompt_length)
        self._tokens += sum(len(row) for row in output.sequences)
        outputs = self._outputs.setdefault((request.number, running.row), {})
        outputs[running.window] = output
        if len(outputs) < len(request.rows[running.row]):
            return
        del self._outputs[request.number, running.row]
        if self._runner.has_windows or len(outputs) > 1:
            output = join([outputs[window] for window in sorted(outputs)])
        self._events.append(Row(request.number, running.row, output, request.options.pad_token_id or 0))

    # The events of the scheduler

    def on_started(self, samples: Sequence[int]) -> None:
        """Tell whose samples are about to run, before they do: they may end this process."""
        started = [self._samples[number] for number in samples]
        for running in started:  # from its beginning, where its batch failed
            running.detokenizer, running.streamed = None, 0
        self._events += [Started(number) for number in dict.fromkeys(running.request.number for running in started)]
        self.report()

    def on_tokens(self, samples: Ints, tokens: Ints) -> None:
        if not self._stream:
            return
        for number, token in zip(samples.tolist(), tokens.tolist(), strict=True):
            running = self._samples.get(number)
            if running is not None and len(running.request.rows[running.row]) == 1:  # windows have no order of tokens
                self._stream_token(running, token)

    def _stream_token(self, running: _Running, token: int) -> None:
        text = ""
        if self._runner.has_tokenizer:
            if running.detokenizer is None:
                options = running.sample.options
                running.detokenizer = IncrementalDetokenizer(lambda tokens: text_of(self._runner, tokens, options))
            text = running.detokenizer.add(token)
        running.streamed += 1
        self._events.append(Token(running.request.number, running.row, running.streamed, token, text))
