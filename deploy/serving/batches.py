"""Batches of requests: the samples of several requests run together, and the events of each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.serving.messages import Event, Refused, Request, Row, Stats, Token
from tightbeam.deploy.serving.requests import Sample, parse_request
from tightbeam.deploy.text.batching import batches
from tightbeam.deploy.text.detokenizer import IncrementalDetokenizer
from tightbeam.deploy.text.output import join, output_of, text_of

__all__ = ["run_requests"]


def run_requests(
    runner: Runner,
    requests: Iterable[Request],
    *,
    max_rows: int,
    stream: bool,
    send: Callable[[Event], None],
    cancelled: Callable[[], Collection[int]],
) -> Stats:
    """Run requests together, in batches that change no result.

    Every row of a request that is neither refused nor cancelled sends one `Row`, as soon as its result is final.

    Parameters
    ----------
    runner
        The model.
    requests
        The requests.
    max_rows
        The most rows (samples x beams) that are run together.
    stream
        Send a `Token` for each token of greedy search, too.
    send
        Function that takes the events.
    cancelled
        Function that returns the numbers of cancelled requests; called after every step.

    Returns
    -------
    Stats
        The work that was done.
    """
    samples: list[Sample] = []
    for request in requests:
        try:
            samples += (sample for row in parse_request(runner, request, max_rows).rows for sample in row)
        except (InputError, GenerationError) as error:
            send(Refused(request.number, str(error)))
    run = _Run(runner, stream, send, cancelled)
    for batch in batches(
        samples,
        key=lambda sample: (sample.request.options, sample.batch_key),
        size=lambda sample: max(1, max_rows // sample.request.options.num_beams),
        order=lambda sample: -sample.length,  # longest first, so that there is little padding
    ):
        run.batch(batch)
    return run.stats


@dataclass
class _Run:
    """One call of `run_requests`."""

    runner: Runner
    stream: bool
    send: Callable[[Event], None]
    cancelled: Callable[[], Collection[int]]
    stats: Stats = field(default_factory=Stats)

    def batch(self, samples: list[Sample]) -> None:
        """Run a batch. If the model fails, run each of its requests alone, so that only the faulty one is refused."""
        try:
            if open_samples := self._open(samples):
                _Batch(self, open_samples).run()
        except (BundleError, GenerationError, InputError) as error:
            open_samples = self._open(samples)
            requests = list(dict.fromkeys(sample.request for sample in open_samples))
            if len(requests) == 1:
                requests[0].closed = True
                self.send(Refused(requests[0].number, str(error), client_error=not isinstance(error, BundleError)))
                return
            for request in requests:
                self.batch([sample for sample in open_samples if sample.request is request])

    def _open(self, samples: list[Sample]) -> list[Sample]:
        """The samples without a result, of requests that are neither refused nor cancelled."""
        cancelled = self.cancelled()
        for sample in samples:
            sample.request.closed = sample.request.closed or sample.request.number in cancelled
        return [sample for sample in samples if sample.output is None and not sample.request.closed]


class _Batch:
    """Samples of equal options, run together. It is the `SearchCallback` of their search."""

    def __init__(self, run: _Run, samples: list[Sample]) -> None:
        self._run, self._runner, self._stats = run, run.runner, run.stats
        self._samples = samples
        self._options = samples[0].request.options
        self._prompt_length = 0
        self._steps = 0
        self._step_end = time.perf_counter()
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}

    def run(self) -> None:
        self._stats.batches += 1
        self._stats.samples += len(self._samples)
        settings = self._samples[0].request.settings
        if self._runner.is_speech:
            features = np.stack([sample.features for sample in self._samples if sample.features is not None])
            self._runner.generate_from_features(features, callback=self, **settings)
            return
        ids, mask = self._runner.pad([sample.tokens for sample in self._samples], self._options)
        self._prompt_length = self._runner.prompt_of(ids)
        self._runner.generate(ids, mask, callback=self, **settings)

    def on_step(self, samples: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64] | None) -> npt.NDArray[np.bool_]:
        now = time.perf_counter()
        if self._steps:
            self._stats.step_seconds += now - self._step_end
        else:
            self._stats.prefill_seconds += now - self._step_end
        self._step_end = now
        self._steps += 1
        self._stats.steps += 1
        if self._run.stream and tokens is not None:
            for index, token in zip(samples.tolist(), tokens.tolist(), strict=True):
                self._send_token(index, token)
        cancelled = self._run.cancelled()
        return np.array([self._samples[index].request.number in cancelled for index in samples.tolist()], np.bool_)

    def _send_token(self, index: int, token: int) -> None:
        """Send a token, unless it was sent before its batch was run again. Of several windows of one row send none."""
        sample = self._samples[index]
        if len(sample.request.rows[sample.row]) > 1:
            return
        text = ""
        if self._runner.has_tokenizer:
            if index not in self._detokenizers:
                self._detokenizers[index] = IncrementalDetokenizer(
                    lambda tokens: text_of(self._runner, tokens, self._options)
                )
            text = self._detokenizers[index].add(token)
        if self._steps > sample.streamed:
            sample.streamed = self._steps
            self._run.send(Token(sample.request.number, sample.row, token, text))

    def on_finished(self, sample: int, result: SearchResult) -> None:
        finished = self._samples[sample]
        finished.output = output_of(self._runner, result, self._options, self._prompt_length)
        self._stats.tokens += sum(len(row) for row in finished.output.sequences)
        row = finished.request.rows[finished.row]
        outputs = [part.output for part in row if part.output is not None]
        if len(outputs) == len(row):
            output = join(outputs) if self._runner.is_speech else outputs[0]
            self._run.send(Row(finished.request.number, finished.row, output, self._options.pad_token_id or 0))
