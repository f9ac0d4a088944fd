"""The command line that the recipes share, and how they write: two folders, each whole or not there."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from transformers.utils import logging as transformers_logging

from tightbeam.deploy.bundle.atomic_dir import write_folder
from tools.training import Recipe, console

ZOO = Path("build/zoo")
THREADS = 1  # part of each recipe: another number sums in another order and gives other weights


def inputs_of(output: Path) -> Path:
    """The folder of the inputs that a checkpoint is tried on."""
    return output.with_name(f"{output.name}-inputs")


def run(name: str, steps: int, make: Callable[[int, int, Path, Path], None]) -> None:
    """Read a recipe's command line, and train.

    Parameters
    ----------
    name : str
        Of the module, and of the folder.
    steps : int
        Default of `--steps`.
    make : callable
        Gets the steps, the seed, and two empty folders, for the checkpoint and for its inputs.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m tools.zoo.{name}", description=f"Train the zoo's {name} from nothing and measure it."
    )
    parser.add_argument("--output", type=Path, default=ZOO / name, help="folder to write (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=steps, help="training steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data, weights and order (default: %(default)s)")
    arguments = parser.parse_args()
    output: Path = arguments.output
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps} is too small; expected 1 or more")
    if output.exists():
        parser.error(f"--output {output} exists; expected a new folder; remove it, or name another one")
    output.parent.mkdir(parents=True, exist_ok=True)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    started = time.perf_counter()
    # The checkpoint gets its name last, so that where it is, its inputs are too.
    write_folder(
        output,
        lambda folder: write_folder(
            inputs_of(output), lambda inputs: make(arguments.steps, arguments.seed, folder, inputs), force=True
        ),
    )
    console.print(f"{output}: made in {(time.perf_counter() - started) / 60:.1f} minutes")


def write_lines(path: Path, lines: list[str]) -> None:
    """Write texts, one a line."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


CARD = """# {title} type of Tightbeam's zoo

{says}

    python -m tools.zoo.{name} --steps {steps} --seed {seed}

which gives the same weights again on the same machine. Training took {steps} steps of {batch} {rows}, and {minutes:.0f}
minutes of wall clock on one thread. `make real-check` measures it on the held-out inputs in the folder beside this one.
"""


def write_card(folder: Path, name: str, says: str, recipe: Recipe, rows: str, seconds: float) -> None:
    """Write README.md of a checkpoint.

    Parameters
    ----------
    folder : Path
    name : str
        Of the module.
    says : str
        The sizes of the model, and what it does, in sentences.
    recipe : Recipe
    rows : str
        What a batch is made of.
    seconds : float
        Wall clock of the training.
    """
    says = textwrap.fill(f"{says} It knows nothing else. Made from nothing by", 120)
    card = CARD.format(title=name.title(), name=name, says=says, rows=rows, minutes=seconds / 60, **vars(recipe))
    (folder / "README.md").write_text(card, encoding="utf-8")
    console.print(card)
