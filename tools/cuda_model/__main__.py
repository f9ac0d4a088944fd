"""Floors of the CUDA kernels from their machine code.

python -m tools.cuda_model --operator LatentAttention --batch 32,128 --kernels
"""

from __future__ import annotations

from typing import Annotated

import typer

from tools.cuda_model.gpus import GPUS
from tools.cuda_model.model import KernelFloors, floors_of
from tools.cuda_model.shapes import MODELS, calls_of


def main(
    model: Annotated[str, typer.Option(help="Names of models, separated by commas.")] = "BART-large",
    operator: Annotated[str, typer.Option(help="Names of operators, separated by commas; all by default.")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,8,32,128,320",
    gpu: Annotated[str, typer.Option(help=f"GPUs, separated by commas, of: {', '.join(GPUS)}.")] = "H200",
    kernels: Annotated[bool, typer.Option(help="Also print each kernel: code, registers, counts, limits.")] = False,
) -> None:
    """Print one row a call: its floor, and what its kernels allow."""
    wanted = set(filter(None, operator.split(",")))
    for name in gpu.split(","):
        for model_name in model.split(","):
            for B in map(int, batch.split(",")):
                for call in calls_of(MODELS[model_name], B):
                    if wanted and call.operator not in wanted:
                        continue
                    found = floors_of(call, GPUS[name])
                    print(
                        f"{name} {model_name} B {B:3} {call.operator:20} {call.label:22} floor "
                        f"{found.floor_s * 1e6:7.1f} executed {found.executed_s * 1e6:7.1f} "
                        f"expected {found.expected_s * 1e6:7.1f} us  allowed "
                        f"{100 * found.allowed:3.0f} % expected {100 * found.expected:3.0f} %"
                    )
                    if not kernels:
                        continue
                    for one in found.kernels:
                        _print_kernel(one)


def _print_kernel(one: KernelFloors) -> None:
    parts = ", ".join(f"{part} {seconds * 1e6:.1f}" for part, seconds in one.parts.items())
    kinds = ", ".join(f"{kind} {number:.0f}" for kind, number in one.cost.kinds.most_common())
    print(
        f"    {one.name}: {one.instructions} instructions, {one.registers} registers, {one.spills} spills, "
        f"{one.byte_loads} byte loads, {one.blocks} blocks of {one.warps} warps, {one.blocks_at_once} at once\n"
        f"      a warp executes {one.cost.instructions:.0f}, {one.turns:.0f} times {one.turn:.0f} in its longest loop: "
        f"{kinds}\n      microseconds: {parts}"
    )
    for line in one.unknown:
        print(f"      counted once: {line}")


if __name__ == "__main__":
    typer.run(main)
