"""Throughput of a served bundle next to its bare runner and to a naive deployment; every response is checked.

    python -m tools.bench.serving build/demo demo --sources export/demo/examples.txt
    python -m tools.bench.serving build/bench/bart-large-random-dedup build/bart-large-random --source-tokens 512

``bare``: `Runner.generate` in this process, with as many samples as the clients would fill a batch with; timed before
and after the others. ``served``: the bundle in Triton, as triton-repo writes it. ``naive``: transformers' `generate` in
the same Triton, request by request (naive_model.py). Clients keep one request in flight each.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table

from tightbeam.deploy import Bundle, BundleError, GenerationError, Runner
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.serving.backend.worker_process import threads_per_worker
from tightbeam.deploy.serving.repository.config import RepositoryError, ServingSettings
from tightbeam.deploy.serving.repository.models import write_model
from tightbeam.deploy.serving.server.local_server import LocalServer
from tightbeam.deploy.serving.server.triton_server import ServerError, find_server
from tightbeam.deploy.text.output import output_of
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.checkpoint.resolve import resolve
from tightbeam.export.errors import ExportError
from tools.bench.closed_loop import ClosedLoop, Load
from tools.serve.serving_client import read_parameter

BARE, SERVED, NAIVE = "bare", "served", "naive"
COMPARED_WITH_TORCH = 3
"""Sources for which the runner's tokens are compared with those of `generate`."""
CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 0
input {{ name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ 1, -1 ] }}
output {{ name: "OUTPUT_IDS" data_type: TYPE_INT64 dims: [ -1, -1 ] }}
instance_group {{ count: {instances} kind: KIND_CPU }}
"""

Tokens = list[list[int]]
"""The sequences of one source, without padding."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder made by export-model.")],
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint of the bundle, for the naive deployment.")],
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
    instances: Annotated[int, typer.Option(help="Instances, as for triton-repo; of the naive deployment too.")] = 1,
    batching_delay_us: Annotated[int, typer.Option(help="Longest wait for a batch, as for triton-repo.")] = 2000,
    naive: Annotated[bool, typer.Option(help="Time the naive deployment too.")] = True,
    output: Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON.")] = None,
) -> None:
    """Print a table of requests a second, latency, batch fill and memory."""
    console = Console(highlight=False)
    try:
        numbers = [int(number) for number in clients.split(",")]
        if min(numbers) < 1:
            raise ValueError
    except ValueError:
        raise typer.BadParameter(
            f"--clients {clients} is no list of positive numbers; pass for instance 1,8,32"
        ) from None
    parameters = dict(map(read_parameter, parameter))
    serving = ServingSettings(
        name=SERVED, max_batch_size=max_batch_size, instances=instances, batching_delay_us=batching_delay_us
    )
    try:
        serving.check()
        find_server()  # before the minutes of work that need it
        bench = _Bench(bundle, checkpoint, serving, parameters, sources, (source_count, source_tokens))
        console.print(f"parity: {bench.check()}")
        with tempfile.TemporaryDirectory() as folder:
            bench.write_repository(Path(folder) / "models", naive=naive)
            with LocalServer(Path(folder) / "models", log=Path(folder) / "log") as server:
                figures = [
                    figure
                    for number in numbers
                    for figure in bench.time(server, number, seconds, warm_up_seconds, rounds, naive=naive)
                ]
    except (BundleError, ExportError, GenerationError, InputError, RepositoryError, ServerError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    _print(console, figures)
    if output is not None:
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if any(figure["lost"] or figure["wrong"] for figure in figures):
        say("error: responses were lost or wrong, see the table")
        raise typer.Exit(1)


def _value(value: Any) -> Any:
    """A setting as `generate` takes it; Triton takes lists as JSON text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


class _Bench:
    def __init__(
        self,
        bundle: Path,
        checkpoint: str,
        serving: ServingSettings,
        parameters: dict[str, Any],
        texts: Path | None,
        random: tuple[int, int],
    ) -> None:
        self._bundle = Bundle.load(bundle)
        self._checkpoint = resolve(checkpoint)
        self._serving = serving
        self._parameters = parameters
        self._settings = settings = {name: _value(value) for name, value in parameters.items()}
        self._runner = Runner.load(bundle, verify=False)
        self._options = self._runner.options(**settings)
        if texts is None:
            ids = np.random.default_rng(0).integers(5, self._bundle.manifest.sizes.source_vocabulary, random)
            self._sources = ids.tolist()
        else:
            try:
                lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
            except UnicodeDecodeError as error:
                raise InputError(f"{texts} is not UTF-8 (byte {error.start}); convert it") from None
            if not lines:
                raise InputError(f"{texts} holds no text; expected one a line")
            self._sources = [self._runner.encode(line, **settings)[0] for line in lines]
        self._expected = [self._generate([source])[0] for source in self._sources]

    def _generate(self, sources: Sequence[list[int]]) -> list[Tokens]:
        ids, mask = self._runner.pad(sources, self._options)
        found = self._runner.generate(ids, mask, **self._settings)
        returned = self._options.num_return_sequences
        prompt = self._runner.prompt_of(ids)
        return [
            output_of(self._runner, found.of(sample, returned), self._options, prompt).sequences
            for sample in range(len(sources))
        ]

    def _tokens(self, source: int, sequences: Array) -> Tokens:
        """The response that the sequences of `generate` make for a source."""
        prompt = len(self._sources[source]) if self._runner.decoder_only else 0
        return output_of(self._runner, SearchResult(sequences, None), self._options, prompt).sequences

    @property
    def _architecture(self) -> str:
        name: str = json.loads((self._checkpoint / "config.json").read_text(encoding="utf-8"))["architectures"][0]
        return name

    def check(self) -> str:
        """Raise unless the tokens of the runner are those of `generate`."""
        with quiet_transformers(), torch.no_grad():
            model = getattr(transformers, self._architecture).from_pretrained(self._checkpoint, dtype=torch.float32)
            for source in range(min(COMPARED_WITH_TORCH, len(self._sources))):
                ids = torch.tensor([self._sources[source]])
                found = model.eval().generate(ids, attention_mask=torch.ones_like(ids), **self._settings)
                if self._tokens(source, found.numpy()) != self._expected[source]:
                    raise SystemExit(f"error: source {source}: runner and generate differ; is it the same checkpoint?")
        return f"runner and generate give the same tokens for {source + 1} of {len(self._sources)} sources"

    def write_repository(self, repository: Path, *, naive: bool) -> None:
        """Write a model of each deployment."""
        write_model(self._bundle, repository, self._serving)
        if not naive:
            return
        parameters = {
            "checkpoint": str(self._checkpoint),
            "architecture": self._architecture,
            "threads": str(threads_per_worker(self._serving.instances) or len(os.sched_getaffinity(0))),
            "settings": json.dumps(self._settings),
        }
        config = CONFIG.format(name=NAIVE, instances=self._serving.instances) + "".join(
            f'parameters {{ key: "{name}" value {{ string_value: {json.dumps(value)} }} }}\n'
            for name, value in parameters.items()
        )
        (repository / NAIVE / "1").mkdir(parents=True)
        (repository / NAIVE / "config.pbtxt").write_text(config, encoding="utf-8")
        shutil.copyfile(Path(__file__).with_name("naive_model.py"), repository / NAIVE / "1" / "model.py")

    def time(
        self, server: LocalServer, clients: int, seconds: float, warm_up_seconds: float, rounds: int, *, naive: bool
    ) -> list[dict[str, Any]]:
        """Figures of each case: medians of the rounds, and sums of errors and wrong responses."""
        models = [SERVED, NAIVE] if naive else [SERVED]
        bare: list[float] = []
        found: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
        for _ in range(rounds):
            bare += self._time_bare(clients, seconds / 4)
            for model in models:
                outputs = ["OUTPUT_IDS", "OUTPUT_LENGTHS"] if model == SERVED else ["OUTPUT_IDS"]
                loop = ClosedLoop(
                    server,
                    model,
                    [np.array([source]) for source in self._sources],
                    outputs,
                    self._parameters if model == SERVED else {},
                    clients=clients,
                    seconds=seconds,
                )
                found[model].append(self._figures(loop.run(warm_up_seconds)))
            bare += self._time_bare(clients, seconds / 4)
        batch = min(clients, self._serving.max_batch_size)
        rate = batch / statistics.median(bare)
        figures: list[dict[str, Any]] = [
            {"case": BARE, "clients": clients, "batch": batch, "requests_per_second": rate, "lost": 0, "wrong": 0}
        ]
        for model in models:
            figure = {name: statistics.median(each[name] for each in found[model]) for name in found[model][0]}
            figure |= {name: sum(each[name] for each in found[model]) for name in ("answers", "lost", "wrong")}
            of_bare = figure["requests_per_second"] / rate
            figures.append({"case": model, "clients": clients, "of_bare": of_bare, **figure})
        return figures

    def _time_bare(self, clients: int, seconds: float) -> list[float]:
        """Seconds of each batch that the clients would fill; two batches at least."""
        batch = min(clients, self._serving.max_batch_size)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 2 or time.perf_counter() < end:
            first = len(times) * batch
            chosen = [self._sources[(first + index) % len(self._sources)] for index in range(batch)]
            start = time.perf_counter()
            self._generate(chosen)
            times.append(time.perf_counter() - start)
        return times

    def _figures(self, load: Load) -> dict[str, Any]:
        for error in sorted(set(load.errors)):
            say(f"lost: {error}")
        return {
            "requests_per_second": load.requests_per_second,
            "p50_ms": load.latency_ms(50),
            "p95_ms": load.latency_ms(95),
            "batch_fill": load.batch_fill,
            "queue_ms": load.queue_ms,
            "answers": len(load.responses),
            "lost": len(load.errors),
            "wrong": sum(self._is_wrong(response.source, response.outputs) for response in load.responses),
            "memory_third_bytes": load.memory_bytes[0],
            "memory_end_bytes": load.memory_bytes[1],
        }

    def _is_wrong(self, source: int, outputs: dict[str, Array]) -> bool:
        if "OUTPUT_LENGTHS" not in outputs:
            return self._tokens(source, outputs["OUTPUT_IDS"]) != self._expected[source]
        rows = zip(outputs["OUTPUT_IDS"][0], outputs["OUTPUT_LENGTHS"][0], strict=True)
        return [row[:length].tolist() for row, length in rows] != self._expected[source]


def _print(console: Console, figures: Sequence[dict[str, Any]]) -> None:
    table = Table(title="Served, next to the bare runner with batches as the clients fill them", title_justify="left")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "clients": lambda row: f"{row['clients']}",
        "case": lambda row: f"{row['case']}",
        "requests/s": lambda row: f"{row['requests_per_second']:.2f}",
        "of bare": lambda row: f"{row['of_bare']:.2f}",
        "p50 ms": lambda row: f"{row['p50_ms']:,.1f}",
        "p95 ms": lambda row: f"{row['p95_ms']:,.1f}",
        "batch fill": lambda row: f"{row.get('batch') or row['batch_fill']:.1f}",
        "queue ms": lambda row: f"{row['queue_ms']:,.1f}",
        "answers": lambda row: f"{row['answers']:,.0f}",
        "lost": lambda row: f"{row['lost']}",
        "wrong": lambda row: f"{row['wrong']}",
        "MB at a third": lambda row: f"{row['memory_third_bytes'] / 1e6:,.0f}",
        "MB at the end": lambda row: f"{row['memory_end_bytes'] / 1e6:,.0f}",
    }
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in figures:
        table.add_row(*(_cell(cell, row) for cell in columns.values()))
    console.print(table)


def _cell(cell: Callable[[dict[str, Any]], str], row: dict[str, Any]) -> str:
    try:
        return cell(row)
    except KeyError:  # the bare runner has no queue, for instance
        return ""


if __name__ == "__main__":
    command_line(app, "tools.bench.serving")
