"""The page of tables of all models and GPUs, of rows that ``tools.cuda_model.table --record`` wrote.

python -m tools.cuda_model.table --record build/cuda-model/now.json --batch 8,32,128
python -m tools.cuda_model.page build/cuda-model/now.json > docs/explanation/cuda-kernel-tables.md
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from tools.cuda_model.gpus import GPUS
from tools.cuda_model.shapes import MODELS

__all__ = ["page"]

Row = dict[str, Any]
HEAD = """# CUDA kernels by model and GPU: computed floors

**Every figure on this page is computed, none is measured**, from the machine code of commit {commit}, as
[CUDA kernels](cuda-kernels.md) describes. Float16; a layer's calls and the search's.

    python -m tools.cuda_model.table --record build/cuda-model/now.json --batch {batches}
    python -m tools.cuda_model.page build/cuda-model/now.json > docs/explanation/cuda-kernel-tables.md

By batch: the floor in µs, and the share of the roofline in %, as expected .. at most; *limit* is what takes longest at
the largest batch. Loops that the model cannot bound, in paths seldom taken, are counted once.


| model | beams | heads | key heads | width | source positions | tokens so far | vocabulary |
|---|---|---|---|---|---|---|---|
{models}
"""


def page(rows: list[Row], commit: str) -> str:
    """The page in Markdown."""
    batches = list(dict.fromkeys(row["B"] for row in rows))
    models = "\n".join(
        f"| {m.name} | {m.M} | {m.H} | {m.G} | {m.K} | {m.N:,} | {m.T} | {m.vocabulary:,} |"
        for m in MODELS.values()
        if any(row["model"] == m.name for row in rows)
    )
    parts = [HEAD.format(commit=commit, models=models, batches=",".join(map(str, batches)))]
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        device = GPUS[gpu]
        parts.append(
            f"## {gpu}\n\nCompute capability {int(device.capability) / 10}, {device.multiprocessors} multiprocessors, "
            f"{device.bytes_per_s / 1e12:g} TB/s, {device.flops_per_s / 1e12:g} TFLOP/s.\n"
        )
        parts.append(_table(rows, gpu, batches) + "\n")
    return "\n".join(parts)


def _table(rows: list[Row], gpu: str, batches: list[int]) -> str:
    heads = ["model", "operator", *(f"B = {B}: floor, µs | share, %" for B in batches), "limit"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * (2 * len(batches) + 3)]
    calls: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if row["gpu"] == gpu:
            calls.setdefault((row["model"], f"{row['operator']}, {row['label']}"), {})[row["B"]] = row
    before = ""
    for (model, operator), by_batch in calls.items():
        cells = [model if model != before else "", operator]
        for B in batches:
            row = by_batch[B]
            cells += [f"{row['floor_us']:.1f}", f"{row['expected']:.0f} .. {row['allowed']:.0f}"]
        lines.append(f"| {' | '.join(cells)} | {by_batch[batches[-1]]['limit']} |")
        before = model
    return "\n".join(lines)


def main(file: Annotated[Path, typer.Argument(help="Rows that tools.cuda_model.table recorded.")]) -> None:
    """Print the page."""
    command = ["git", "log", "-1", "--format=%h", "--", "plugins"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    print(page(json.loads(file.read_text("utf-8")), commit), end="")


if __name__ == "__main__":
    typer.run(main)
