"""Try any checkpoint on real inputs, in every variant and precision, beside torch and other engines.

    python -m tools.real_check build/zoo/llama
    python -m tools.real_check path/to/whisper-base --inputs path/to/recordings
    python -m tools.real_check published --inputs path/to/inputs        # needs a hub

The folder of inputs is described in ``tools/real_check/inputs.py``; without ``--inputs`` it is the one beside the
checkpoint, ``llama-inputs`` for ``llama`` and for ``llama-strong``. Tokens of float32 must be those of
``model.generate``: greedy, with beams, sampled by the same draws; of a Whisper also segments, timestamps and times of
tokens of whole recordings. Other engines run the same weights if they are installed: ``python -m tools.bench.peers
install --only ctranslate2 --only llama.cpp``.
"""

from __future__ import annotations

import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer

from tightbeam.deploy.bundle.manifest import PRECISIONS
from tightbeam.deploy.console import command_line, say
from tightbeam.graph_passes import PRESETS
from tools.bench.peers.environments import is_installed
from tools.bench.pictures import STYLE
from tools.real_check.check import Options
from tools.real_check.errors import CheckError
from tools.real_check.inputs import read_inputs
from tools.real_check.picture import picture
from tools.real_check.published import PUBLISHED, listed
from tools.real_check.reports import above_rule, report_of
from tools.real_check.table import as_markdown

HELP = "Try any checkpoint on real inputs, in every variant and precision, beside torch and other engines."
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=HELP)


@app.command()
def run(
    checkpoints: Annotated[
        list[str], typer.Argument(help=f"Folders, aliases or hub ids; {PUBLISHED}: the list of published ones.")
    ],
    without_speed: Annotated[
        list[str], typer.Option(help="A further checkpoint, without speed and memory: a seasoned copy. Repeatable.")
    ] = [],  # noqa: B006
    inputs: Annotated[Path | None, typer.Option(help="Folder of real inputs; by default CHECKPOINT-inputs.")] = None,
    variant: Annotated[list[str], typer.Option(help=f"{', '.join(PRESETS)}. Repeatable; all by default.")] = [],  # noqa: B006
    precision: Annotated[list[str], typer.Option(help="Repeatable; all by default.")] = list(PRECISIONS),  # noqa: B006
    stored: Annotated[
        bool, typer.Option("--stored", help="Take the results that the work folder has of a checkpoint.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=0, help="Turns of each engine; 0 measures neither speed nor memory.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 2,
    environments: Annotated[Path, typer.Option(help="Folder of the engines' environments.")] = Path("build/peers"),
    work: Annotated[Path, typer.Option(help="Folder for bundles, models, logs and results.")] = Path(
        "build/real-check"
    ),
    page: Annotated[
        Path, typer.Option(help="Page for the tables; they replace all below its first rule (---).")
    ] = Path("build/real-check/report.md"),
    image: Annotated[Path, typer.Option(help="SVG file of the picture of times and memory.")] = Path(
        "build/real-check/peers.svg"
    ),
) -> None:
    """Run the check; the exit status is 1 if an export failed or a token of float32 differs."""
    for option, given, known in (("--variant", variant, PRESETS), ("--precision", precision, PRECISIONS)):
        if unknown := set(given) - set(known):
            raise CheckError(f"{option} {min(unknown)} is unknown; pass {', '.join(known)}")
    above = above_rule(page)  # errors now, before minutes of work
    if inputs is not None:
        read_inputs(inputs)

    for folder in (work, page.parent, image.parent):
        folder.mkdir(parents=True, exist_ok=True)
    options = Options(variant, precision, rounds, threads, environments, work)
    known_ids = listed()
    names = [each for given in checkpoints for each in (known_ids if given == PUBLISHED else (given,))]
    reports = [report_of(name, inputs, options, stored) for name in names]
    if without_speed:  # nothing is timed, so each process has a core
        alone = replace(options, rounds=0, threads=1)
        try:
            processes, silent = min(threads, len(without_speed)), (signal.SIGINT, signal.SIG_DFL)
            with ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, silent) as pool:
                reports += pool.map(report_of, without_speed, repeat(inputs), repeat(alone), repeat(stored))
        except BrokenProcessPool:
            raise CheckError("a process of the seasoned copies was killed; free memory, or pass --threads 1") from None
    missing = [name for name in ("ctranslate2", "llama.cpp") if not is_installed(environments, name)]
    text = as_markdown(reports, missing)
    print(text)
    page.write_text(f"{above}\n---\n\n{text}", encoding="utf-8")
    if any(report.speeds for report in reports):
        with mpl.rc_context(STYLE):
            picture(reports).savefig(image, metadata={"Date": None, "Creator": None})
    wrong = [line for report in reports for line in report.wrong()]
    for line in wrong:
        say(f"error: {line}")
    raise typer.Exit(bool(wrong))


def main() -> None:
    """Run the command; a known error is one line."""
    try:
        command_line(app, "python -m tools.real_check")
    except CheckError as error:
        say(f"error: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
