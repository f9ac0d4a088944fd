"""Requests of many users, run together: which samples share a batch, and what is told of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.bundle.reader import BundleError
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.options import GenerationError
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.serving.messages import Event, Refused, Request, Row, Stats, Token
from tightbeam.deploy.serving.requests import ParsedRequest, Sample, parse_request
from tightbeam.deploy.text.detokenizer import IncrementalDetokenizer
from tightbeam.deploy.text.output import join, output_of, text_of

__all__ = ["run_requests"]

Send = Callable[[Event], None]
Cancelled = Callable[[], Collection[int]]


def run_requests(
    runner: Runner, requests: Iterable[Request], *, max_rows: int, stream: bool, send: Send, cancelled: Cancelled
) -> Stats:
    """Run all of them. Of each row of a request there comes one `Row`, as soon as it is through, unless the request is
    refused or cancelled; with ``stream``, a `Token` for each of greedy search before.

    ``cancelled``: the numbers of the requests that nobody waits for, asked after every step.
    """
    jobs = []
    for request in requests:
        try:
            jobs.append(parse_request(runner, request, max_rows))
        except (InputError, GenerationError) as error:
            send(Refused(request.number, str(error)))
    stats = Stats()
    for parts in _batches(jobs, max_rows):
        _run(_Batch(runner, parts, stream, send, cancelled, stats))
    return stats


def _batches(jobs: Iterable[ParsedRequest], max_rows: int) -> Iterator[list[Sample]]:
    """Samples that may be run together: of equal settings, and none changes what another gets. The longest first, so
    that padding is little."""
    groups: dict[Hashable, list[Sample]] = {}
    for job in jobs:
        for part in (part for row in job.parts for part in row):
            groups.setdefault((job.options, part.batch_key), []).append(part)
    for parts in groups.values():
        parts.sort(key=lambda part: -part.length)
        count = max(1, max_rows // parts[0].job.options.num_beams)
        for start in range(0, len(parts), count):
            yield parts[start : start + count]


def _run(batch: _Batch) -> None:
    """Run a batch. Where the model cannot, each request is tried alone, so that one does not harm the others."""
    try:
        batch.run()
    except (BundleError, GenerationError, InputError) as error:
        jobs = list(dict.fromkeys(part.job for part in batch.waiting()))
        if len(jobs) == 1:
            jobs[0].over = True
            batch.send(Refused(jobs[0].number, str(error), own=not isinstance(error, BundleError)))
            return
        for job in jobs:
            _run(batch.of([part for part in batch.waiting() if part.job is job]))


class _Batch:
    """Samples run together. It is the `SearchCallback` of their search."""

    def __init__(
        self, runner: Runner, parts: list[Sample], stream: bool, send: Send, cancelled: Cancelled, stats: Stats
    ) -> None:
        self.runner, self.parts, self.stream, self.send, self.cancelled = runner, parts, stream, send, cancelled
        self.stats = stats
        self.options = parts[0].job.options
        self._prompt = 0
        self._steps = 0
        self._last = 0.0
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}

    def of(self, parts: list[Sample]) -> _Batch:
        """The same, of other samples."""
        return _Batch(self.runner, parts, self.stream, self.send, self.cancelled, self.stats)

    def waiting(self) -> list[Sample]:
        """Samples that are not through, of requests that somebody waits for."""
        gone = self.cancelled()
        for part in self.parts:
            part.job.over = part.job.over or part.job.number in gone
        return [part for part in self.parts if part.output is None and not part.job.over]

    def run(self) -> None:
        self.parts = self.waiting()
        if not self.parts:
            return
        self.stats.batches += 1
        self.stats.samples += len(self.parts)
        self._last = time.perf_counter()
        settings = self.parts[0].job.settings
        if self.runner.log_mel:
            features = np.stack([part.features for part in self.parts if part.features is not None])
            self.runner.generate_from_features(features, callback=self, **settings)
            return
        ids, mask = self.runner.pad([part.tokens for part in self.parts], self.options)
        self._prompt = self.runner.prompt_of(ids)
        self.runner.generate(ids, mask, callback=self, **settings)

    def on_step(self, samples: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64] | None) -> npt.NDArray[np.bool_]:
        now = time.perf_counter()
        if self._steps:
            self.stats.step_seconds += now - self._last
        else:
            self.stats.prefill_seconds += now - self._last
        self._last = now
        self._steps += 1
        self.stats.steps += 1
        if self.stream and tokens is not None:
            for sample, token in zip(samples.tolist(), tokens.tolist(), strict=True):
                self._say(self.parts[sample], sample, token)
        gone = self.cancelled()
        return np.array([self.parts[sample].job.number in gone for sample in samples.tolist()], np.bool_)

    def _say(self, part: Sample, sample: int, token: int) -> None:
        """Tell of a token, unless it was told before a batch was run again; of windows that run side by side, none."""
        if len(part.job.parts[part.row]) > 1:
            return
        detokenizer = self._detokenizers.setdefault(
            sample, IncrementalDetokenizer(lambda tokens: text_of(self.runner, tokens, self.options))
        )
        text = detokenizer.add(token) if self.runner.has_tokenizer else ""
        if self._steps > part.said:
            part.said = self._steps
            self.send(Token(part.job.number, part.row, token, text))

    def on_finished(self, sample: int, result: SearchResult) -> None:
        part = self.parts[sample]
        part.output = output_of(self.runner, result, self.options, self._prompt)
        self.stats.tokens += sum(len(row) for row in part.output.sequences)
        windows = [other.output for other in part.job.parts[part.row] if other.output is not None]
        if len(windows) == len(part.job.parts[part.row]):
            whole = join(windows) if self.runner.log_mel else windows[0]
            self.send(Row(part.job.number, part.row, whole, self.options.pad_token_id or 0))
