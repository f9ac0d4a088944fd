"""Latency and throughput of an arrival trace, in whole batches and with requests that join the running batch.

    python -m tools.bench.replay build/bart-large-random-dedup-int8 --clients 32
    python -m tools.bench.replay build/bart-large-random-dedup-int8 --rate 0.3

Both ways run in this process on one thread, without a server. The clock is the processor time of the process, so that
other work on the machine changes nothing; where no request waits, it is put forward to the next one. ``batches`` is a
server that lets at most --batch-size requests run together and takes no other before all of them are through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tightbeam.deploy import Runner
from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.console import command_line
from tightbeam.deploy.scheduling.scheduler import FailedSample
from tightbeam.deploy.search import SearchResult
from tools.bench.arrivals import Arrivals, ClosedLoopArrivals, PoissonArrivals, Request, trace

CHECKED = 3
"""Requests whose tokens are compared with those of each alone."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Clock:
    """Seconds of processor time, and those that were skipped."""

    def __init__(self) -> None:
        self._start = time.process_time()

    def now(self) -> float:
        return time.process_time() - self._start

    def skip_to(self, then: float) -> None:
        self._start -= max(0.0, then - self.now())


class Replay:
    """One run of a trace: who came and who was answered, by the clock."""

    def __init__(self, arrivals: Arrivals, stop_after: int) -> None:
        self.arrivals, self.stop_after, self.clock = arrivals, stop_after, Clock()
        self.came: dict[int, float] = {}
        self.answered: dict[int, float] = {}

    def due(self, *, wait: bool) -> list[Request]:
        """The requests that have come; where none has and ``wait``, the next one."""
        if wait:
            self.clock.skip_to(self.arrivals.next_time)
        found = self.arrivals.due(self.clock.now())
        self.came |= {request.number: at for request, at in found}
        return [request for request, _ in found]

    def answer(self, number: int) -> None:
        self.answered[number] = self.clock.now()
        self.arrivals.answered(self.answered[number])

    @property
    def over(self) -> bool:
        return len(self.answered) >= self.stop_after

    def figures(self, warm_up: int) -> dict[str, float]:
        """Requests a second and latencies of those that were answered after the first ``warm_up``."""
        order = sorted(self.answered, key=self.answered.__getitem__)
        start, counted = self.answered[order[warm_up - 1]], order[warm_up : self.stop_after]
        latency = np.array([self.answered[number] - self.came[number] for number in counted])
        p50, p95 = np.percentile(latency, [50, 95]).tolist()
        return {"requests/s": len(counted) / (self.answered[counted[-1]] - start), "p50 s": p50, "p95 s": p95}


class EndAt:
    """The `SearchCallback` that answers each sample at its length, and removes it."""

    def __init__(self, replay: Replay, requests: Sequence[Request]) -> None:
        self._replay, self._requests = replay, requests
        self._lengths = np.array([request.new_tokens for request in requests])
        self._steps = 0

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        self._steps += 1
        over: Bools = self._lengths[samples] <= self._steps
        for sample in samples[over].tolist():
            self._replay.answer(self._requests[sample].number)
        return over

    def on_finished(self, sample: int, result: SearchResult) -> None:
        self._replay.answer(self._requests[sample].number)


def in_batches(runner: Runner, replay: Replay, batch_size: int, asked: Callable[[int], dict[str, Any]]) -> None:
    """Run whole batches, longest sources first. ``asked``: settings for so many new tokens."""
    waiting: list[Request] = []
    while not replay.over:
        waiting += replay.due(wait=not waiting)
        batch, waiting = waiting[:batch_size], waiting[batch_size:]
        batch.sort(key=lambda request: -len(request.source))
        settings = asked(max(request.new_tokens for request in batch))
        ids, mask = runner.pad([request.source for request in batch], runner.options(**settings))
        runner.generate(ids, mask, callback=EndAt(replay, batch), **settings)


class Joining:
    """Requests that join the running batch; counts the steps that one waited for no reason."""

    def __init__(self, runner: Runner, replay: Replay, max_rows: int, asked: Callable[[int], dict[str, Any]]) -> None:
        self._runner, self._replay, self._asked = runner, replay, asked
        self._places = max_rows // runner.options(**asked(1)).num_beams
        self._started = 0
        self._scheduler = runner.group_scheduler(max_rows, self)
        self._waiting: dict[int, int] = {}
        self.most_steps = 0
        """The most steps that a request waited while there was room and the encoder rested."""

    def run(self) -> None:
        while not self._replay.over:
            for request in self._replay.due(wait=not self._scheduler.active):
                self._waiting[request.number] = 0
                settings = self._asked(request.new_tokens)
                self._scheduler.add(self._runner.sample(request.number, request.source, settings))
            before, room = self._scheduler.work.prefills, self._started < self._places
            for ended in self._scheduler.turn():
                if isinstance(ended, FailedSample):
                    raise ended.error
                self._replay.answer(ended.number)
                self._started -= 1
            if room and self._scheduler.work.prefills == before:
                self._waiting = {number: steps + 1 for number, steps in self._waiting.items()}
        self._scheduler.close()

    def on_started(self, samples: Iterable[int]) -> None:
        for number in samples:
            self._started += 1
            self.most_steps = max(self.most_steps, self._waiting.pop(number))

    def on_tokens(self, samples: Ints, tokens: Ints) -> None: ...


def check(runner: Runner, requests: Sequence[Request], asked: Callable[[int], dict[str, Any]]) -> None:
    """Raise SystemExit unless requests that run together get the tokens of each alone."""
    scheduler, found = runner.scheduler(len(requests)), {}
    for request in requests:
        scheduler.add(runner.sample(request.number, request.source, asked(request.new_tokens)))
    while scheduler.active:
        for ended in scheduler.turn():
            if isinstance(ended, FailedSample):
                raise ended.error
            found[ended.number] = ended.result.sequences
    scheduler.close()
    for request in requests:
        alone = runner.generate([request.source], **asked(request.new_tokens)).sequences
        if not np.array_equal(found[request.number], alone):
            raise SystemExit(f"error: request {request.number} gets other tokens beside others than alone")


@app.command()
def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder of an encoder-decoder.")],
    clients: Annotated[int, typer.Option(min=1, help="Clients with one request each.")] = 32,
    rate: Annotated[float, typer.Option(min=0, help="Requests a second at random times, in place of clients.")] = 0,
    requests: Annotated[int, typer.Option(min=2, help="Requests to answer, after as many as there are clients.")] = 96,
    batch_size: Annotated[int, typer.Option(min=1, help="The most requests that run together.")] = 16,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 4,
    longest: Annotated[int, typer.Option(min=8, help="Longest source, in tokens.")] = 1024,
    least_new: Annotated[int, typer.Option(min=1, help="Least new tokens.")] = 8,
    most_new: Annotated[int, typer.Option(min=1, help="Most new tokens.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the trace.")] = 1,
) -> None:
    """Print requests a second and latency of whole batches, and of requests that join."""
    runner = Runner.load(bundle, threads=1, verify=False)
    vocabulary = runner.manifest.sizes.source_vocabulary

    def asked(count: int) -> dict[str, Any]:
        return {"num_beams": beams, "max_new_tokens": count, "min_new_tokens": count, "no_repeat_ngram_size": 3}

    def replay() -> Replay:
        drawn = trace(seed, vocabulary, longest=longest, new_tokens=(least_new, most_new))
        arrivals = PoissonArrivals(drawn, rate, seed) if rate else ClosedLoopArrivals(drawn, clients)
        return Replay(arrivals, clients + requests)

    first = trace(seed, vocabulary, longest=longest, new_tokens=(least_new, most_new))
    check(runner, [next(first) for _ in range(CHECKED)], asked)
    old = replay()
    in_batches(runner, old, batch_size, asked)
    new = replay()  # its clock starts now
    joining = Joining(runner, new, batch_size * beams, asked)
    joining.run()
    _print(old.figures(clients), new.figures(clients), joining.most_steps)


def _print(old: dict[str, float], new: dict[str, float], most_steps: int) -> None:
    table = Table(title="Processor time of one thread", title_justify="left")
    for heading in ("", *old):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in (("batches", old), ("joining", new)):
        table.add_row(name, *(f"{value:,.3f}" for value in row.values()))
    table.add_row("joining / batches", *(f"{new[name] / old[name]:.2f}" for name in old))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"the most steps that a request waited while there was room and the encoder rested: {most_steps}")


if __name__ == "__main__":
    command_line(app, "python -m tools.bench.replay")
