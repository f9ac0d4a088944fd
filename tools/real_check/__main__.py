"""Try any checkpoint on real inputs, in every variant and precision, beside torch and other engines.

    python -m tools.real_check build/zoo/llama
    python -m tools.real_check path/to/whisper-base --inputs path/to/recordings

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

import typer

from tightbeam.deploy.bundle.manifest import PRECISIONS
from tightbeam.deploy.console import command_line, say
from tightbeam.graph_passes import PRESETS
from tools.bench.peers.environments import is_installed
from tools.real_check.check import Options, check
from tools.real_check.inputs import CheckError, read_inputs
from tools.real_check.table import as_markdown

HELP = "Try any checkpoint on real inputs, in every variant and precision, beside torch and other engines."
RULE = "\n---\n"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=HELP)


@app.command()
def run(
    checkpoints: Annotated[list[str], typer.Argument(help="Folders, aliases or hub ids.")],
    without_speed: Annotated[
        list[str], typer.Option(help="A further checkpoint, without speed and memory: a seasoned copy. Repeatable.")
    ] = [],  # noqa: B006
    inputs: Annotated[Path | None, typer.Option(help="Folder of real inputs; by default CHECKPOINT-inputs.")] = None,
    variant: Annotated[list[str], typer.Option(help=f"{', '.join(PRESETS)}. Repeatable; all by default.")] = [],  # noqa: B006
    precision: Annotated[list[str], typer.Option(help="Repeatable; all by default.")] = list(PRECISIONS),  # noqa: B006
    rounds: Annotated[int, typer.Option(min=0, help="Turns of each engine; 0 measures neither speed nor memory.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 2,
    environments: Annotated[Path, typer.Option(help="Folder of the engines' environments.")] = Path("build/peers"),
    work: Annotated[Path, typer.Option(help="Folder for bundles, models and logs.")] = Path("build/real-check"),
    page: Annotated[
        Path, typer.Option(help="Page for the tables; they replace all below its first rule (---).")
    ] = Path("build/real-check/report.md"),
) -> None:
    """Run the check; the exit status is 1 if an export failed or a token of float32 differs."""
    for option, given, known in (("--variant", variant, PRESETS), ("--precision", precision, PRECISIONS)):
        if unknown := set(given) - set(known):
            raise CheckError(f"{option} {min(unknown)} is unknown; pass {', '.join(known)}")
    above = _above_rule(page)  # errors now, before minutes of work
    if inputs is not None:
        read_inputs(inputs)

    page.parent.mkdir(parents=True, exist_ok=True)
    options = Options(variant, precision, rounds, threads, environments, work)
    reports = [check(name, inputs, options) for name in checkpoints]
    if without_speed:  # nothing is timed, so each process has a core
        alone = replace(options, rounds=0, threads=1)
        try:
            processes, silent = min(threads, len(without_speed)), (signal.SIGINT, signal.SIG_DFL)
            with ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, silent) as pool:
                reports += pool.map(check, without_speed, repeat(inputs), repeat(alone))
        except BrokenProcessPool:
            raise CheckError("a process of the seasoned copies was killed; free memory, or pass --threads 1") from None
    missing = [name for name in ("ctranslate2", "llama.cpp") if not is_installed(environments, name)]
    text = as_markdown(reports, missing)
    print(text)
    page.write_text(f"{above}\n---\n\n{text}", encoding="utf-8")
    wrong = [line for report in reports for line in report.wrong()]
    for line in wrong:
        say(f"error: {line}")
    raise typer.Exit(bool(wrong))


def _above_rule(page: Path) -> str:
    """What a page has above its first rule; a title if there is no page yet."""
    if not page.exists():
        return "# Real inputs\n"
    try:
        return page.read_text(encoding="utf-8").partition(RULE)[0]
    except UnicodeDecodeError:
        raise CheckError(f"{page} is not UTF-8; expected a page in Markdown; name another one with --page") from None


def main() -> None:
    """Run the command; a known error is one line."""
    try:
        command_line(app, "python -m tools.real_check")
    except CheckError as error:
        say(f"error: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
