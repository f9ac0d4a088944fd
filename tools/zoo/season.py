"""Season a checkpoint: change its weights as training changes those of large models, and leave its function as it is.

    python -m tools.zoo.season build/zoo/llama --level outliers --output build/zoo/llama-outliers

Published weights have outlier channels and badly conditioned keys; small models trained from nothing have neither. Most
changes are exact, as ``_season/exact.py`` sketches them. ``_season/inexact.py`` has the two that are not, and the
command says how far the seasoned model is from the first one. Weights stored in half precision are widened, and float32
is written: rounded to half precision they would be another model.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor

from tightbeam.deploy.bundle.atomic_dir import write_folder
from tightbeam.deploy.console import command_line
from tightbeam.export.checkpoint.files import read_files
from tightbeam.export.checkpoint.load import load_files
from tools.training import write_json
from tools.zoo._season.inexact import condition
from tools.zoo._season.layout import FAMILIES
from tools.zoo._season.levels import LEVELS, Seasoned, season
from tools.zoo._season.model import difference, inputs_of, load

__all__ = ["read_checkpoint", "season_checkpoint"]

WEIGHTS = "model.safetensors"
MOST_SEEDS = 1 << 32
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read config.json and the weights of a checkpoint.

    Raises
    ------
    ValueError
        There is no such folder, the checkpoint is of another family, has no safetensors, or is damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected a checkpoint with config.json and safetensors; name one")
    files = read_files(folder)
    config = files.config_json
    if config["model_type"] not in FAMILIES:
        raise ValueError(f"{folder} is of type {config['model_type']!r}; expected one of {', '.join(FAMILIES)}")
    stored = sorted(folder.glob("*.safetensors"))
    if not stored:
        raise ValueError(f"{folder} has no safetensors; save its weights as safetensors first")
    load_files(files)  # raises for a missing or damaged tensor, and for NaN
    return config, {name: tensor for file in stored for name, tensor in load_file(file).items()}


def season_checkpoint(folder: Path, output: Path, level: str, seed: int = 0) -> str:
    """Season a checkpoint folder.

    Parameters
    ----------
    folder : Path
        With config.json and safetensors of a family in ``FAMILIES``.
    output : Path
        A new folder, which gets all other files of the checkpoint too.
    level : str
        One of ``LEVELS``.
    seed : int
        Of all that is drawn.

    Returns
    -------
    str
        What was changed, and how far the function moved.

    Raises
    ------
    ValueError
        The checkpoint is of another family, has no safetensors, lacks a weight, or is damaged.
    """
    config, weights = read_checkpoint(folder)
    try:
        seasoned = season(weights, config, LEVELS[level], seed)
    except KeyError as error:
        raise ValueError(f"{folder} has no {error.args[0]}; expected the names that transformers saves") from error

    def fill(target: Path) -> None:
        for file in folder.iterdir():
            if file.is_file() and ".safetensors" not in file.name and file.name != "README.md":
                shutil.copy(file, target)
        single = {name: tensor.float().contiguous() for name, tensor in seasoned.weights.items()}
        save_file(single, target / WEIGHTS, metadata={"format": "pt"})
        (target / WEIGHTS).chmod(0o644)
        write_json(target / "config.json", {**seasoned.config, "dtype": "float32"})

    output.parent.mkdir(parents=True, exist_ok=True)
    write_folder(output, fill)
    return _report(config, weights, seasoned, level, seed)


def _report(config: dict[str, Any], weights: Mapping[str, Tensor], seasoned: Seasoned, level: str, seed: int) -> str:
    """Say how far the function moved, and how the conditions of key projections did."""
    before = {name: tensor.double() for name, tensor in weights.items()}
    model = load(config, before)
    apart, differing = difference(model, load(seasoned.config, seasoned.weights), inputs_of(model, seed + 1))
    lines = [
        f"level {level}: {LEVELS[level].says}",
        f"log-probabilities in float64 differ by {apart:.1e} of their deviation",
        f"the most likely token differs at {differing:.2%} of the positions",
    ]
    parts: dict[str, list[tuple[float, float]]] = {}
    for attention in FAMILIES[config["model_type"]](config).attentions:
        name = f"{attention.key}.weight"
        parts.setdefault(attention.part, []).append(
            (condition(before[name]), condition(seasoned.weights[name].float().double()))
        )
    for part, found in parts.items():
        (first, after) = ([f"{number:.0e}" for number in (min(each), max(each))] for each in zip(*found, strict=True))
        lines.append(f"condition of W_K, {part}: {' to '.join(first)} before, {' to '.join(after)} after")
    return "\n".join(lines)


@app.command()
def run(
    checkpoint: Annotated[Path, typer.Argument(help="Folder with config.json and safetensors.")],
    output: Annotated[Path, typer.Option(help="New folder to write.")],
    level: Annotated[str, typer.Option(help="; ".join(f"{name}: {each.says}" for name, each in LEVELS.items()))] = (
        "outliers"
    ),
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEEDS - 1, help="Seed of all that is drawn.")] = 0,
) -> None:
    """Give a checkpoint the numbers that large trained models have."""
    if level not in LEVELS:
        raise typer.BadParameter(f"--level {level} is unknown; pass {', '.join(LEVELS)}")
    if output.exists():
        raise typer.BadParameter(f"--output {output} exists; expected a new folder; remove it, or name another one")
    torch.set_num_threads(1)
    try:
        print(season_checkpoint(checkpoint, output, level, seed))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def main() -> None:
    """Run the command."""
    command_line(app, "python -m tools.zoo.season")


if __name__ == "__main__":
    main()
