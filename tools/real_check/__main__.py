"""Try any checkpoint on real inputs, in every variant and precision, beside torch and other engines.

    python -m tools.real_check build/zoo/llama
    python -m tools.real_check path/to/whisper-base --inputs path/to/recordings
    python -m tools.real_check published --inputs path/to/inputs        # needs a hub

The folder of inputs is described in ``tools/real_check/inputs.py``; without ``--inputs`` it is the one beside the
checkpoint, ``llama-inputs`` for ``llama`` and for ``llama-strong``. Tokens of float32 must be those of
``model.generate``: greedy, with beams, sampled by the same draws; of a Whisper also segments, timestamps and times of
tokens of whole recordings. Other engines run the same weights where they are installed: ``python -m tools.bench.peers
install --only ctranslate2 --only llama.cpp``.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer
from pydantic import TypeAdapter

from tightbeam.deploy.bundle.manifest import PRECISIONS
from tightbeam.deploy.console import command_line, say
from tightbeam.export.checkpoint.resolve import DEMO_FOLDER, checkpoint_name
from tightbeam.graph_passes import PRESETS
from tools.bench.peers.environments import is_installed
from tools.bench.pictures import STYLE
from tools.real_check.check import Options, Report, check
from tools.real_check.errors import CheckError
from tools.real_check.inputs import RealInputs, folder_beside, read_inputs
from tools.real_check.picture import picture
from tools.real_check.published import PUBLISHED, fetched, listed
from tools.real_check.table import as_markdown

HELP = "Try any checkpoint on real inputs, in every variant and precision, beside torch and other engines."
REPORT = TypeAdapter(Report)
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
    if inputs is not None:
        read_inputs(inputs)  # an error now, before minutes of work

    work.mkdir(parents=True, exist_ok=True)
    options = Options(variant, precision, rounds, threads, environments, work)
    known_ids = listed()
    names = [each for given in checkpoints for each in (known_ids if given == PUBLISHED else (given,))]
    reports = [_report(name, inputs, options, stored) for name in names]
    if without_speed:  # nothing is timed, so each process has a core
        alone = replace(options, rounds=0, threads=1)
        try:
            with ProcessPoolExecutor(min(threads, len(without_speed)), get_context("spawn")) as pool:
                reports += pool.map(_report, without_speed, repeat(inputs), repeat(alone), repeat(stored))
        except BrokenProcessPool:
            raise CheckError("a process of the seasoned copies was killed; free memory, or pass --threads 1") from None
    missing = [name for name in ("ctranslate2", "llama.cpp") if not is_installed(environments, name)]
    text = as_markdown(reports, missing)
    print(text)
    above = page.read_text(encoding="utf-8").partition("\n---\n")[0] if page.exists() else "# Real inputs\n"
    page.write_text(f"{above}\n---\n\n{text}", encoding="utf-8")
    if any(report.speeds for report in reports):
        with mpl.rc_context(STYLE):
            picture(reports).savefig(image, metadata={"Date": None, "Creator": None})
    wrong = [line for report in reports for line in report.wrong()]
    for line in wrong:
        say(f"error: {line}")
    raise typer.Exit(bool(wrong))


def _report(name: str, inputs: Path | None, options: Options, stored: bool) -> Report:
    """Check a checkpoint, or take the ``stored`` result; what was found stays in the work folder."""
    file = options.work / f"{checkpoint_name(name)}.json"
    if stored and file.exists():
        return REPORT.validate_json(file.read_bytes())
    known_ids = listed()
    try:
        place = fetched(name, known_ids[name]) if name in known_ids else name
        report = check(place, partial(_inputs_of, inputs), options, say)
    except CheckError as error:
        report = Report(name, error=str(error))
    file.write_bytes(REPORT.dump_json(report, indent=1))
    return report


def _inputs_of(inputs: Path | None, checkpoint: Path) -> RealInputs:
    """The inputs in a folder, or those that lie beside a checkpoint."""
    if inputs is None and checkpoint == DEMO_FOLDER:
        lines = (DEMO_FOLDER / "examples.txt").read_text(encoding="utf-8").splitlines()
        return RealInputs(DEMO_FOLDER, tuple(lines), (), "", ())
    return read_inputs(inputs or folder_beside(checkpoint))


def main() -> None:
    """Run the command; a known error is one line."""
    try:
        command_line(app, "python -m tools.real_check")
    except CheckError as error:
        say(f"error: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
