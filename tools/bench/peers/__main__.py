"""Speed and memory beside transformers, CTranslate2, faster-whisper, OpenVINO and optimum-onnx, and beside the floor.

    python -m tools.bench.peers install
    python -m tools.bench.peers prepare --shape marian-base
    python -m tools.bench.peers run --shape marian-base --batch 1 --batch 8 --rounds 3
    python -m tools.bench.peers run --shape whisper-small --recording --batch 1 --batch 8 --beams 5 --new-tokens 40
    python -m tools.bench.peers report > table.md

Each engine has an environment of its own and runs in a process of its own, and they take turns. Random weights stand
for a checkpoint's: no time depends on them, since each run generates as many tokens as ``--new-tokens`` says. Two runs,
of 2 tokens and of all, tell the encoder's time from a step's. ``--shape demo`` takes the bundled model with its own
settings, and ``--lines`` of its reports. With ``--recording`` a batch of a speech model is a recording of so many
windows, whose features are made in the run, and faster-whisper is compared.

First the tokens: in float32 Tightbeam must have the tokens of transformers, else the run ends. Of the other engines the
equal sequences are counted, since their beam searches have other rules, and int8 has other weights. Every result is
written as it is found, and a later call goes on, so that an idle machine can be used in slices. Delete a cell from the
results to measure it again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tightbeam.deploy import Bundle, BundleError
from tightbeam.deploy.console import command_line, say
from tightbeam.export.errors import ExportError
from tools.bench.peers.contenders import CONTENDERS, EXACT, FLOOR, MAPPED, Place
from tools.bench.peers.environments import ENVIRONMENTS, PeerError
from tools.bench.peers.environments import install as install_environment
from tools.bench.peers.jobs import DEMO, RECORDING, SOURCES, Job, demo_job, random_job, task_of
from tools.bench.peers.measure import measure
from tools.bench.peers.results import Group, Results
from tools.bench.peers.table import as_markdown

HELP = "Speed and memory beside transformers, CTranslate2, faster-whisper, OpenVINO and optimum-onnx, and the floor."
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=HELP)
console = Console(highlight=False, soft_wrap=True)

Environments = Annotated[Path, typer.Option(help="Folder of the engines' environments.")]
Work = Annotated[Path, typer.Option(help="Folder for checkpoints, models and logs; existing ones are reused.")]
Stored = Annotated[Path, typer.Option(help="File of results, a line each.")]
Shape = Annotated[str, typer.Option(help=f"{', '.join(SOURCES)}, or {DEMO}.")]
Engines = Annotated[list[str], typer.Option("--engine", help=f"{'; '.join(CONTENDERS)}. Repeatable; all by default.")]
Recording = Annotated[bool, typer.Option(help="Give a speech model recordings in place of features.")]
ENVIRONMENTS_FOLDER, WORK, RESULTS = Path("build/peers"), Path("build/bench"), Path("build/bench/peers.jsonl")


@app.command()
def install(
    environments: Environments = ENVIRONMENTS_FOLDER,
    only: Annotated[list[str], typer.Option(help=f"{', '.join(ENVIRONMENTS)}. Repeatable; all by default.")] = [],  # noqa: B006
) -> None:
    """Make the engines' environments, with pinned versions."""
    for name in only or ENVIRONMENTS:
        if name not in ENVIRONMENTS:
            raise typer.BadParameter(f"--only {name} is unknown; pass {', '.join(ENVIRONMENTS)}")
        console.print(f"{environments / name}: installing {', '.join(ENVIRONMENTS[name])}")
        if not install_environment(environments, name):
            console.print("it was there")


@app.command()
def prepare(
    shape: Shape = "bart-large-cnn",
    engine: Engines = list(CONTENDERS),  # noqa: B006
    recording: Recording = False,
    environments: Environments = ENVIRONMENTS_FOLDER,
    work: Work = WORK,
) -> None:
    """Make the checkpoint of a shape and every engine's model of it, so that ``run`` has only to measure."""
    place = _place(shape, recording, environments, work)
    names = _known(engine, place.task)
    place.check(names)
    for name in names:
        place.model(name)


@app.command()
def run(
    shape: Shape = "bart-large-cnn",
    engine: Engines = list(CONTENDERS),  # noqa: B006
    batch: Annotated[list[int], typer.Option(min=1, help="Samples in a batch; repeatable.")] = [1, 4, 8, 32],  # noqa: B006
    beams: Annotated[list[int], typer.Option(min=1, help="Beams of a sample; repeatable.")] = [4],  # noqa: B006
    new_tokens: Annotated[int, typer.Option(min=3, help="Tokens generated for a sample; not of the demo.")] = 100,
    source: Annotated[int | None, typer.Option(min=1, help="Source tokens in place of the shape's.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="Reports that the demo model writes headlines for.")] = 600,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that every cell shall have.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 2,
    recording: Recording = False,
    environments: Environments = ENVIRONMENTS_FOLDER,
    work: Work = WORK,
    results: Stored = RESULTS,
) -> None:
    """Measure what the results lack."""
    place = _place(shape, recording, environments, work)
    names = _known(engine, place.task)
    place.check(names)
    if shape == DEMO:  # whose outputs end by themselves
        names = [name for name in names if not name.startswith((FLOOR, MAPPED))]
    source = source or SOURCES.get(shape, 0)
    groups: list[tuple[Group, Job]] = []
    for size in sorted(batch):
        for width in sorted(beams):
            if shape == DEMO:
                job = demo_job(Bundle.load(place.model(EXACT)), lines, width)
            else:
                job = random_job(shape, place.checkpoint(), size, source, width, new_tokens, place.task)
            named = f"{shape}-recording" if recording else shape
            groups.append((Group(named, source, job.new_tokens, threads, width, size), job))
    measure(groups, names, rounds, Results(results), lambda name: place.start(name, threads), console.print)


@app.command()
def report(
    results: Stored = RESULTS,
    processor_time: Annotated[
        bool, typer.Option(help="Seconds of the processor in place of the clock's, for a machine that others use.")
    ] = False,
) -> None:
    """Print the tables as Markdown."""
    if not results.exists():
        raise PeerError(f"{results} does not exist; run: python -m tools.bench.peers run")
    print(as_markdown(Results(results, processor_time)), end="")


def _place(shape: str, recording: bool, environments: Path, work: Path) -> Place:
    if shape != DEMO and shape not in SOURCES:
        raise typer.BadParameter(f"--shape {shape} is unknown; pass {DEMO} or one of {', '.join(SOURCES)}")
    task = task_of(shape, recording)
    if recording and task != RECORDING:
        raise typer.BadParameter(f"--recording is for speech models, and {shape} reads text; leave it out")
    work.mkdir(parents=True, exist_ok=True)
    return Place(shape, task, environments, work, console.print)


def _known(names: list[str], task: str) -> list[str]:
    """The contenders that are asked for and can do a task, in their order, in which the reference is first."""
    for name in names:
        if name not in CONTENDERS:
            raise typer.BadParameter(f"--engine {name!r} is unknown; pass one of {'; '.join(CONTENDERS)}")
    return [name for name, contender in CONTENDERS.items() if name in names and task in contender.tasks]


def main() -> None:
    """Run the command; a known error is one line."""
    try:
        command_line(app, "python -m tools.bench.peers")
    except (BundleError, ExportError, PeerError) as error:
        say(f"error: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
