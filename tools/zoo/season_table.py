"""Print the errors of a checkpoint's products in six forms of fewer bits: what ``tools.zoo.season`` is calibrated to.

    python -m tools.zoo.season_table build/zoo/llama build/zoo/llama-outliers

The rows are those of inputs that the model draws itself; half of them choose scales and columns, the others count.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.training import console
from tools.zoo._season.forms import measure_forms
from tools.zoo._season.model import inputs_of, load
from tools.zoo.season import read_checkpoint

SEED = 5
"""Of the inputs: another than those that a seasoning was made with."""


def table(folder: Path) -> list[str]:
    """The lines of a Markdown table, a line a form."""
    config, weights = read_checkpoint(folder)
    model = load(config, {name: tensor.double() for name, tensor in weights.items()})
    lines = [f"| {folder.name} | median | worst | weights within 3 % | within 1 % |", "|---|---|---|---|---|"]
    for name, form in measure_forms(model, inputs_of(model, SEED)).items():
        shares = f"{form.share(0.03):.0%} | {form.share(0.01):.0%}"
        lines.append(f"| {name} | {form.errors.median():.2%} | {form.errors.max():.1%} | {shares} |")
    return lines


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.zoo.season_table", description="Print the errors of products in forms of fewer bits."
    )
    parser.add_argument("checkpoints", type=Path, nargs="+", help="folders with config.json and safetensors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for folder in arguments.checkpoints:
        try:
            console.print("\n".join(table(folder)), "", sep="\n", soft_wrap=True)
        except (OSError, ValueError) as error:
            parser.error(f"{error}")


if __name__ == "__main__":
    main()
