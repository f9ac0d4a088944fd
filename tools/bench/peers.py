"""Speed and memory beside transformers and CTranslate2: the same inputs, settings and threads, in one run.

    python -m venv build/ctranslate2 && build/ctranslate2/bin/pip install ctranslate2==4.8.5
    python -m tools.bench.peers
    python -m tools.bench.peers --model demo --batch 1 --batch 16

Each engine is loaded in a process of its own, and they take turns, so that a slow moment of the machine meets all of
them. Random weights stand for a checkpoint's: no time depends on them, since each run generates as many tokens as
``--new-tokens`` says. ``--model demo`` takes the bundled model with its own settings, and ``--lines`` of its reports.

First the tokens: those of Tightbeam must be transformers', else the run ends. CTranslate2's sequences are counted where
they are equal: its beam search has other rules for ties, for the end and for n-grams, and int8 has other weights.

Seconds are the medians of ``--rounds`` rounds, of a whole call: token ids in, token ids out. Memory is the most that
the process had resident, loading included, up to the end of that batch size.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from tightbeam.deploy import Bundle, BundleError
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.text.tokenizer import load_codec
from tightbeam.export.errors import ExportError
from tools.bench.decode_step import bundle_of
from tools.demo.reports import generate
from tools.make_checkpoint import SHAPES
from tools.make_checkpoint import main as make_checkpoint

DEMO = "demo"
DEMO_CHECKPOINT = Path("export/demo")
TRANSFORMERS, CTRANSLATE2, CTRANSLATE2_INT8 = "transformers", "CTranslate2 fp32", "CTranslate2 int8"
PRECISIONS = {CTRANSLATE2: "float32", CTRANSLATE2_INT8: "int8"}
WORKER = Path(__file__).with_name("peer_process.py")
SETTLE_SECONDS = 0.5
"""Pause before a turn: the threads of the engine before go on spinning for 0.2 s (OpenMP of CTranslate2)."""
WARM_UP = {"min_new_tokens": 1, "max_new_tokens": 2}

Rows = list[list[int]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class PeerError(Exception):
    """A peer that is missing, that fails, or whose tokens are wrong."""


class Peer:
    """An engine in its process."""

    def __init__(self, name: str, python: Path, engine: str, folder: Path, threads: int, log: Path) -> None:
        self.name = name
        self._log = log
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                [str(python), "-I", str(WORKER), engine, str(folder), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=environment,
            )
        self.loaded = self._result()

    def run(self, batches: list[Rows], settings: dict[str, Any], eos: int) -> dict[str, Any]:
        """Run batches of token ids; returns what `peer_process` sends."""
        stream = _piped(self._process.stdin)
        print(json.dumps({"batches": batches, "settings": settings, "eos": eos}), file=stream, flush=True)
        return self._result()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _result(self) -> dict[str, Any]:
        line = _piped(self._process.stdout).readline()
        if not line:
            said = self._log.read_text(errors="replace").split("\n")
            reason = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
            self.close()
            raise PeerError(f"{self.name} ended with code {self._process.returncode} ({reason}); see {self._log}")
        result: dict[str, Any] = json.loads(line)
        return result


def _piped(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@dataclass
class Work:
    """What every engine runs: rows of token ids, settings of ``model.generate``, and the batches of a round, or all."""

    rows: Rows
    settings: dict[str, Any]
    eos: int
    batches_of_round: int | None = None

    def batches(self, size: int) -> list[Rows]:
        """The rows of a round in batches of ``size``, in their order."""
        batches = [self.rows[start : start + size] for start in range(0, len(self.rows), size)]
        return batches[: self.batches_of_round]


@dataclass
class Times:
    """Figures of one engine with one batch size."""

    name: str
    batch: int
    samples: int
    tokens: int
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    @property
    def median(self) -> float:
        """Median seconds of a round."""
        return statistics.median(self.seconds)

    def as_json(self) -> dict[str, Any]:
        """The figures, and the rates that the table shows."""
        rates = {"samples_per_second": self.samples / self.median, "tokens_per_second": self.tokens / self.median}
        return {**vars(self), "median_seconds": self.median, **rates}


@app.command()
def main(
    model: Annotated[str, typer.Option(help=f"Shape of tools/make_checkpoint.py, or {DEMO}.")] = "bart-large-cnn",
    batch: Annotated[list[int], typer.Option(min=1, help="Samples in a batch; repeatable.")] = [1, 8],  # noqa: B006
    variant: Annotated[list[str], typer.Option(help="Variant of Tightbeam; repeatable.")] = ["dedup"],  # noqa: B006
    source: Annotated[int, typer.Option(min=1, help="Source length in tokens; not of the demo.")] = 512,
    beams: Annotated[int, typer.Option(min=1, help="Beams of a sample.")] = 4,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens generated for a sample; not of the demo.")] = 60,
    lines: Annotated[int, typer.Option(min=1, help="Reports that the demo model writes headlines for.")] = 600,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurement.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 2,
    work: Annotated[Path, typer.Option(help="Folder for checkpoints and bundles; existing ones are reused.")] = Path(
        "build/bench"
    ),
    ctranslate2: Annotated[Path, typer.Option(help="Environment in which ctranslate2 is installed.")] = Path(
        "build/ctranslate2"
    ),
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    table: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
) -> None:
    """Print a table of seconds, samples and tokens a second, and peak memory."""
    console = Console(highlight=False)
    if model != DEMO and model not in SHAPES:
        raise typer.BadParameter(f"--model {model} is unknown; pass {DEMO} or one of {', '.join(SHAPES)}")
    load = os.getloadavg()
    work.mkdir(parents=True, exist_ok=True)
    peers: list[Peer] = []
    try:
        packages = _packages(ctranslate2)
        checkpoint = DEMO_CHECKPOINT if model == DEMO else _random_checkpoint(model, work)
        bundles = {name: bundle_of(checkpoint, work, name, console) for name in variant}
        first = bundles[variant[0]]
        if model == DEMO:
            todo = _demo_work(first, lines, beams)
        else:
            todo = _random_work(first, max(batch), source, new_tokens, beams)
        folders = {name: _converted(checkpoint, work, precision, packages) for name, precision in PRECISIONS.items()}

        def start(name: str, python: Path, engine: str, folder: Path) -> None:
            console.print(f"loading {name}")
            log = work / f"peer-{name.lower().replace(' ', '-')}.log"
            peers.append(Peer(name, python, engine, folder, threads, log))

        start(TRANSFORMERS, Path(sys.executable), "transformers", checkpoint)
        for name, folder in folders.items():
            start(name, ctranslate2 / "bin" / "python", "ctranslate2", folder)
        for name, bundle in bundles.items():
            start(f"Tightbeam {name}", Path(sys.executable), "tightbeam", bundle.path)
        figures, equal = _measure(peers, todo, sorted(batch), rounds, console)
    except (BundleError, ExportError, PeerError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    finally:
        for peer in peers:
            peer.close()
    text = _table(figures, lines_of_text=model == DEMO)
    console.print(f"\n{text}\n", soft_wrap=True)
    console.print(f"{os.cpu_count()} cores, {threads} threads an engine; load average {load[0]:.1f} at the start")
    for name, (same, count) in equal.items():
        console.print(f"{name}: {same} of {count} sequences are those of transformers")
    if table is not None:
        table.write_text(text + "\n", encoding="utf-8")
    if output is not None:
        record = {
            "model": model,
            "cores": os.cpu_count(),
            "load_average": load,
            "threads": threads,
            "rounds": rounds,
            "settings": todo.settings,
            "loaded": {peer.name: peer.loaded for peer in peers},
            "equal_sequences": {name: same for name, (same, _) in equal.items()},
            "figures": [times.as_json() for times in figures],
        }
        output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _packages(environment: Path) -> Path:
    """The site-packages folder of CTranslate2's environment."""
    found = next(environment.glob("lib/python*/site-packages/ctranslate2"), None)
    if found is None:
        raise PeerError(
            f"{environment} has no ctranslate2; run: python -m venv {environment} && "
            f"{environment}/bin/pip install ctranslate2==4.8.5"
        )
    return found.parent


def _random_checkpoint(shape: str, work: Path) -> Path:
    folder = work / f"{shape}-random"
    if not folder.exists():
        make_checkpoint(folder, shape)
    return folder


def _converted(checkpoint: Path, work: Path, precision: str, packages: Path) -> Path:
    """The checkpoint in CTranslate2's format."""
    folder = work / f"{checkpoint.name}-ctranslate2-{precision}"
    if not folder.exists():
        command = [sys.executable, "-m", "tools.bench.ctranslate2_model", str(checkpoint), str(folder), precision]
        done = subprocess.run([*command, "--packages", str(packages)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerError(f"CTranslate2 cannot convert {checkpoint}: {done.stderr.strip().splitlines()[-1]}")
    return folder


def _random_work(bundle: Bundle, count: int, source: int, new_tokens: int, beams: int) -> Work:
    """Random sources, one batch a round; nothing is forced or ends early, so that all engines take the same steps."""
    rows = np.random.default_rng(0).integers(5, bundle.manifest.sizes.source_vocabulary, (count, source)).tolist()
    settings = {
        "num_beams": beams,
        "min_new_tokens": new_tokens,
        "max_new_tokens": new_tokens,
        "no_repeat_ngram_size": 3,
        "length_penalty": 1.0,
        "early_stopping": True,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    }
    return Work(rows, settings, bundle.manifest.generation["eos_token_id"], batches_of_round=1)


def _demo_work(bundle: Bundle, count: int, beams: int) -> Work:
    """Reports that the demo model was not trained on, with its own settings."""
    codec = load_codec(bundle)
    own = bundle.manifest.generation
    assert codec is not None
    settings = {
        "num_beams": beams,
        "min_new_tokens": 1,
        "max_new_tokens": own["max_length"] - 1,
        **{name: own[name] for name in ("no_repeat_ngram_size", "length_penalty", "early_stopping")},
        **{name: own[name] for name in ("forced_bos_token_id", "forced_eos_token_id")},
    }
    rows = [codec.encode(report.text) for report in generate(7, count, held_out=True)]
    return Work(rows, settings, own["eos_token_id"])


def _measure(
    peers: list[Peer], work: Work, sizes: list[int], rounds: int, console: Console
) -> tuple[list[Times], dict[str, tuple[int, int]]]:
    """Figures by batch size and engine, and how many sequences of each engine are transformers', of how many."""
    figures: list[Times] = []
    equal: dict[str, tuple[int, int]] = {}
    for size in sizes:
        batches = work.batches(size)
        for peer in peers:
            peer.run(batches[:1], {**work.settings, **WARM_UP}, work.eos)
        of_size = {peer.name: Times(peer.name, size, 0, 0) for peer in peers}
        for number in range(rounds):
            expected: Rows = []
            for peer in peers:
                time.sleep(SETTLE_SECONDS)
                found = peer.run(batches, work.settings, work.eos)
                tokens: Rows = found["tokens"]
                times = of_size[peer.name]
                times.samples, times.tokens = len(tokens), sum(map(len, tokens))
                times.seconds.append(found["seconds"])
                times.processor_seconds.append(found["processor_seconds"])
                times.peak_mb = found["memory_mb"]["peak"]
                expected = expected or tokens
                same = sum(mine == theirs for mine, theirs in zip(tokens, expected, strict=True))
                if peer.name.startswith("Tightbeam") and same != len(expected):
                    raise PeerError(f"{peer.name}: {len(expected) - same} of {len(expected)} sequences are wrong")
                before = equal.get(peer.name, (0, 0))
                if number == 0:
                    equal[peer.name] = before[0] + same, before[1] + len(expected)
                console.print(f"batch {size}, round {number + 1}: {peer.name} {found['seconds']:.2f} s")
        figures += of_size.values()
    return figures, equal


def _table(figures: list[Times], lines_of_text: bool) -> str:
    """The figures in Markdown."""
    unit = "lines/s" if lines_of_text else "samples/s"
    headings = ["batch", "engine", "seconds (least, most)", unit, "tokens/s"]
    headings += [f"x {TRANSFORMERS}", f"x {CTRANSLATE2}", "peak MB"]
    rows = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for times in figures:
        same_batch = {other.name: other.median for other in figures if other.batch == times.batch}
        rows.append(
            f"| {times.batch} | {times.name} | {times.median:.2f} ({min(times.seconds):.2f}, {max(times.seconds):.2f}) "
            f"| {_rate(times.samples / times.median)} | {_rate(times.tokens / times.median)} "
            f"| {same_batch[TRANSFORMERS] / times.median:.2f} | {same_batch[CTRANSLATE2] / times.median:.2f} "
            f"| {times.peak_mb:,.0f} |"
        )
    return "\n".join(rows)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    command_line(app, "python -m tools.bench.peers")
