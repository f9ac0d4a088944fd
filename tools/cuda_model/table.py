"""The model's tables for the documents, of one state of the kernels or of two.

    python -m tools.cuda_model.table --record build/cuda-model/now.json
    python -m tools.cuda_model.table --show build/cuda-model/now.json --before build/cuda-model/5f85204.json

To record an earlier commit: a worktree of it whose ``libtightbeam_tensorrt.so`` was built (``cmake -S plugins``, target
``tightbeam_tensorrt``, copied to its ``plugins/lib``), and its ``tools/namespace`` before this one's on PYTHONPATH.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tools.cuda_model.gpus import GPUS
from tools.cuda_model.model import CallFloors, floors_of
from tools.cuda_model.shapes import MODELS, calls_of

__all__ = ["recorded", "rendered"]

Row = dict[str, Any]


def recorded(models: list[str], gpus: list[str], batches: list[int]) -> list[Row]:
    """One row a call."""
    rows = []
    for gpu in gpus:
        for model in models:
            for B in batches:
                for call in calls_of(MODELS[model], B):
                    rows.append({"gpu": gpu, "model": model, "B": B, **_row(floors_of(call, GPUS[gpu]))})
                    print(f"{gpu}, {model}, B {B}, {call.operator}", flush=True)
    return rows


def _row(found: CallFloors) -> Row:
    first = max(found.kernels, key=lambda kernel: kernel.executed_s)
    return {
        "operator": found.call.operator,
        "label": found.call.label,
        "floor_us": found.floor_s * 1e6,
        "executed_us": found.executed_s * 1e6,
        "bytes_us": found.bytes_s * 1e6,
        "expected_us": found.expected_s * 1e6,
        "allowed": 100 * found.allowed,
        "expected": 100 * found.expected,
        "limit": first.limit if found.executed_s > found.bytes_s else "bytes",
        "blocks": first.blocks,
        "blocks_at_once": first.blocks_at_once,
        "registers": first.registers,
        "instructions": first.instructions,
        "executed": first.cost.instructions,
        "turn": first.turn,
        "spills": sum(kernel.spills for kernel in found.kernels),
        "byte_loads": sum(kernel.byte_loads for kernel in found.kernels),
        "unknown": [line for kernel in found.kernels for line in kernel.unknown],
    }


def rendered(rows: list[Row], before: list[Row]) -> str:
    """A table in Markdown; ``before``: rows of earlier kernels, matched by call, or none."""
    earlier = {_call(row): row for row in before}
    heads = ["operator", "B", "floor, µs"]
    heads += ["before: allowed .. expected, µs", "share, %"] if before else []
    heads += [
        "executed .. expected, µs",
        "share, %",
        "limit",
        "instructions of a warp",
        "a turn",
        "registers",
        "blocks",
    ]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [f"{row['operator']}, {row['label']}", str(row["B"]), f"{row['floor_us']:.1f}"]
        if before:
            cells += _times(earlier[_call(row)]) if _call(row) in earlier else ["", ""]
        spilled = f", {row['spills']} spills" if row["spills"] else ""
        blocks = f"{row['blocks']:,}, {row['blocks_at_once']} at once"
        cells += [*_times(row), row["limit"], f"{row['executed']:,.0f}", f"{row['turn']:,.0f}"]
        cells += [f"{row['registers']}{spilled}", blocks]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _call(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("gpu", "model", "B", "operator", "label"))


def _times(row: Row) -> list[str]:
    return [
        f"{max(row['executed_us'], row['bytes_us']):.1f} .. {row['expected_us']:.1f}",
        f"{row['expected']:.0f} .. {row['allowed']:.0f}",
    ]


def main(
    record: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    show: Annotated[Path | None, typer.Option(help="Print the rows of this file as tables.")] = None,
    before: Annotated[Path | None, typer.Option(help="Rows of earlier kernels to print beside them.")] = None,
    model: Annotated[str, typer.Option(help="Names of models, separated by commas.")] = ",".join(MODELS),
    gpu: Annotated[str, typer.Option(help="Names of GPUs, separated by commas.")] = ",".join(GPUS),
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,8,32,128",
) -> None:
    """Record the kernels of this tree, or print what was recorded."""
    if record is not None:
        rows = recorded(model.split(","), gpu.split(","), [int(B) for B in batch.split(",")])
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(rows, indent=1))
    if show is not None:
        rows, earlier = json.loads(show.read_text()), json.loads(before.read_text()) if before else []
        for gpu_name, model_name in dict.fromkeys((row["gpu"], row["model"]) for row in rows):
            chosen = [row for row in rows if (row["gpu"], row["model"]) == (gpu_name, model_name)]
            print(f"### {model_name}, {gpu_name}\n\n{rendered(chosen, earlier)}\n")


if __name__ == "__main__":
    typer.run(main)
