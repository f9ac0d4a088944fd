"""Processor time of a file's lines: in whole batches in the order of the file, and joining the running batch.

    python -m tools.bench.lines build/bart-large-random-dedup-int8
    python -m tools.bench.lines build/bart-large-random-dedup-int8 --equal --longest 512 --least-new 24 --most-new 24

Both ways run in turn on one thread, and a line leaves its batch at its own length in both. The best round counts, so
that other work on the machine changes little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tightbeam.deploy import Runner
from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.console import command_line
from tightbeam.deploy.padding import right_pad
from tightbeam.deploy.search import SearchResult
from tools.bench.arrivals import Request, trace

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class EndAt:
    """The `SearchCallback` that removes each sample at its length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._steps = np.array(lengths), 0

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        self._steps += 1
        over: Bools = self._lengths[samples] <= self._steps
        return over

    def on_finished(self, sample: int, result: SearchResult) -> None: ...


def settings_for(count: int, beams: int) -> dict[str, Any]:
    return {"num_beams": beams, "max_new_tokens": count, "min_new_tokens": count, "no_repeat_ngram_size": 3}


def in_batches(runner: Runner, lines: Sequence[Request], batch_size: int, beams: int) -> None:
    for start in range(0, len(lines), batch_size):
        batch = lines[start : start + batch_size]
        ids, mask = right_pad([line.source for line in batch])
        lengths = [line.new_tokens for line in batch]
        runner.generate(ids, mask, callback=EndAt(lengths), **settings_for(max(lengths) + 1, beams))


def joining(runner: Runner, lines: Sequence[Request], batch_size: int, beams: int) -> None:
    settings = {line.number: settings_for(line.new_tokens, beams) for line in lines}
    samples = [runner.sample(line.number, line.source, settings[line.number]) for line in lines]
    assert len(runner.scheduler(batch_size).run(samples)) == len(lines)


def seconds(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


@app.command()
def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder of an encoder-decoder.")],
    lines: Annotated[int, typer.Option(min=1, help="Lines of the file.")] = 24,
    batch_size: Annotated[int, typer.Option(min=1, help="Lines that run together.")] = 8,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 4,
    longest: Annotated[int, typer.Option(min=8, help="Longest line, in tokens.")] = 1024,
    equal: Annotated[bool, typer.Option("--equal", help="All lines are as long as the longest.")] = False,
    least_new: Annotated[int, typer.Option(min=1, help="Least new tokens.")] = 56,
    most_new: Annotated[int, typer.Option(min=1, help="Most new tokens.")] = 142,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of both ways.")] = 2,
) -> None:
    """Print the processor time of both ways, and the source positions that padding adds."""
    runner = Runner.load(bundle, threads=1, verify=False)
    vocabulary = runner.manifest.sizes.source_vocabulary
    drawn = list(islice(trace(1, vocabulary, longest=longest, new_tokens=(least_new, most_new)), lines))
    if equal:
        drawn = [Request(line.number, (line.source * longest)[:longest], line.new_tokens) for line in drawn]
    ways = {"batches": in_batches, "joining": joining}
    best = dict.fromkeys(ways, float("inf"))
    for way in ways.values():  # allocates, and reads the weights
        way(runner, [Request(line.number, line.source, 2) for line in drawn[:2]], batch_size, beams)
    for _ in range(rounds):
        for name, way in ways.items():
            best[name] = min(best[name], seconds(lambda way=way: way(runner, drawn, batch_size, beams)))  # type: ignore[misc]
    lengths = [len(line.source) for line in drawn]
    padded = sum(
        max(lengths[i : i + batch_size]) * len(lengths[i : i + batch_size]) for i in range(0, lines, batch_size)
    )
    typer.echo(f"{lines} lines, {sum(lengths):,} positions, {padded:,} in whole batches")
    typer.echo(
        f"batches {best['batches']:.2f} s, joining {best['joining']:.2f} s: {best['batches'] / best['joining']:.3f}"
    )


if __name__ == "__main__":
    command_line(app, "python -m tools.bench.lines")
