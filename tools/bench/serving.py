"""Throughput of a served bundle next to its bare runner; every response is compared with the runner's tokens.

    python -m tools.bench.serving build/demo --sources export/demo/examples.txt
    python -m tools.bench.serving build/bench/bart-large-random-dedup --source-tokens 512

``bare``: `Runner.generate` in this process, with as many samples as the clients would fill a batch with; timed before
and after the other. ``served``: the bundle in Triton, as triton-repo writes it. Each client keeps one request in
flight.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tightbeam.deploy import Bundle, BundleError, GenerationError, Runner
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.serving.repository.config import RepositoryError, ServingSettings
from tightbeam.deploy.serving.repository.models import write_model
from tightbeam.deploy.serving.server.local_server import LocalServer
from tightbeam.deploy.serving.server.triton_server import ServerError, find_server
from tools.bench.closed_loop import ClosedLoop, Load
from tools.serve.serving_client import read_parameter

SERVED = "served"
COLUMNS = {
    "clients": "{}",
    "case": "{}",
    "requests/s": "{:.2f}",
    "of bare": "{:.2f}",
    "p50 ms": "{:,.1f}",
    "p95 ms": "{:,.1f}",
    "batch fill": "{:.1f}",
    "queue ms": "{:,.1f}",
    "answers": "{:,}",
    "lost": "{}",
    "wrong": "{}",
}
"""Figures of a case, and how the table shows each."""

Figures = dict[str, Any]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder made by export-model.")],
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients.")] = "1,8,32",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of measurement for each case.")] = 60.0,
    warm_up_seconds: Annotated[float, typer.Option(min=0, help="Seconds of warm-up before each case.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over all cases; medians are printed.")] = 1,
    sources: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Texts, one a line; random ids otherwise.")
    ] = None,
    source_tokens: Annotated[int, typer.Option(min=1, help="Length of random sources, in tokens.")] = 512,
    source_count: Annotated[int, typer.Option(min=1, help="Number of random sources.")] = 16,
    parameter: Annotated[list[str], typer.Option(help="Setting of model.generate as NAME=VALUE; repeatable.")] = [],  # noqa: B006
    max_batch_size: Annotated[int, typer.Option(help="Largest batch, as for triton-repo.")] = 16,
    instances: Annotated[int, typer.Option(help="Instances, as for triton-repo.")] = 1,
    batching_delay_us: Annotated[int, typer.Option(help="Longest wait for a batch, as for triton-repo.")] = 2000,
    output: Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON.")] = None,
) -> None:
    """Print a table of requests a second, latency and batch fill."""
    numbers = [int(number) if number.isdecimal() else 0 for number in clients.split(",")]
    if min(numbers) < 1:
        raise typer.BadParameter(f"--clients {clients} has a part that is not 1 or more; pass for instance 1,8,32")
    serving = ServingSettings(
        name=SERVED, max_batch_size=max_batch_size, instances=instances, batching_delay_us=batching_delay_us
    )
    figures: list[Figures] = []
    try:
        serving.check()
        find_server()  # before the minutes of work that need it
        bench = _Bench(bundle, dict(map(read_parameter, parameter)), sources, (source_count, source_tokens))
        with tempfile.TemporaryDirectory() as folder:
            write_model(Bundle.load(bundle), Path(folder) / "models", serving)
            with LocalServer(Path(folder) / "models", log=Path(folder) / "log") as server:
                for number in numbers:
                    batch = min(number, max_batch_size)
                    figures += bench.time(server, number, batch, seconds, warm_up_seconds, rounds)
    except (BundleError, GenerationError, InputError, RepositoryError, ServerError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    _print(figures)
    if output is not None:
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if any(figure.get("lost") or figure.get("wrong") for figure in figures):
        say("error: responses were lost or wrong, see the table")
        raise typer.Exit(1)


def _value(value: Any) -> Any:
    """A setting as `generate` takes it; Triton takes lists as JSON text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


class _Bench:
    """The sources, the runner's own tokens for each, and the cases that are timed."""

    def __init__(self, bundle: Path, parameters: dict[str, Any], texts: Path | None, random: tuple[int, int]) -> None:
        self._parameters = parameters
        self._settings = {name: _value(value) for name, value in parameters.items()}
        self._runner = Runner.load(bundle, verify=False)
        if texts is None:
            vocabulary = self._runner.manifest.sizes.source_vocabulary
            self._sources: list[list[int]] = np.random.default_rng(0).integers(5, vocabulary, random).tolist()
        else:
            lines = list(filter(str.strip, texts.read_text(encoding="utf-8").splitlines()))
            if not lines:
                raise InputError(f"{texts} holds no text; expected one a line")
            self._sources = [self._runner.encode(line, **self._settings)[0] for line in lines]
        self._expected = [
            self._runner.generate([source], **self._settings).sequences.tolist() for source in self._sources
        ]

    def time(
        self, server: LocalServer, clients: int, batch: int, seconds: float, warm_up_seconds: float, rounds: int
    ) -> list[Figures]:
        """Figures of both cases: medians of the rounds, and sums of answers, lost and wrong responses."""
        bare: list[float] = []
        found: list[Figures] = []
        for _ in range(rounds):
            bare += self._time_bare(batch, seconds / 4)
            loop = ClosedLoop(server, SERVED, self._sources, self._parameters, clients=clients, seconds=seconds)
            found.append(self._figures(loop.run(warm_up_seconds)))
            bare += self._time_bare(batch, seconds / 4)
        rate = batch / statistics.median(bare)
        served = {name: statistics.median(each[name] for each in found) for name in found[0]}
        served |= {name: sum(each[name] for each in found) for name in ("answers", "lost", "wrong")}
        return [
            {"clients": clients, "case": "bare", "requests/s": rate, "batch fill": batch},
            {"clients": clients, "case": SERVED, "of bare": served["requests/s"] / rate, **served},
        ]

    def _time_bare(self, batch: int, seconds: float) -> list[float]:
        """Seconds of each batch that the clients would fill; two batches at least."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 2 or time.perf_counter() < end:
            first = len(times) * batch
            chosen = [self._sources[(first + index) % len(self._sources)] for index in range(batch)]
            start = time.perf_counter()
            self._runner.generate(chosen, **self._settings)
            times.append(time.perf_counter() - start)
        return times

    def _figures(self, load: Load) -> Figures:
        for error in sorted(set(load.errors)):
            say(f"lost: {error}")
        return {
            "requests/s": load.requests_per_second,
            "p50 ms": load.latency_ms(50),
            "p95 ms": load.latency_ms(95),
            "batch fill": load.batch_fill,
            "queue ms": load.queue_ms,
            "answers": len(load.responses),
            "lost": len(load.errors),
            "wrong": sum(not self._is_right(response.source, response.sequences) for response in load.responses),
        }

    def _is_right(self, source: int, sequences: list[list[int]]) -> bool:
        """True if the sequences are the runner's, which may have padding behind them and a prompt before them."""
        prompt = len(self._sources[source]) if self._runner.decoder_only else 0
        expected = [row[prompt:] for row in self._expected[source]]
        return len(expected) == len(sequences) and all(
            row == whole[: len(row)] and len(set(whole[len(row) :])) <= 1
            for row, whole in zip(sequences, expected, strict=True)
        )


def _print(figures: Sequence[Figures]) -> None:
    table = Table(title="Served, next to the bare runner with batches as the clients fill them", title_justify="left")
    for heading in COLUMNS:
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in figures:  # the bare runner has no queue, for instance
        table.add_row(*(form.format(row[name]) if name in row else "" for name, form in COLUMNS.items()))
    Console(highlight=False).print(table)


if __name__ == "__main__":
    command_line(app, "tools.bench.serving")
