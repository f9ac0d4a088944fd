"""`make cuda-check`: each kernel that the models of ``calls.py`` launch, beside its budget, on each compute capability.

python -m tools.cuda_check --capability 90,120
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.native import Gpu, Kernel
from tools.cuda_check.budgets import BUDGETS, Budget
from tools.cuda_check.calls import MODELS, calls_of, plan_of
from tools.cuda_check.machine_code import Counts, counts_of

__all__ = ["GPUS", "Largest", "check", "faults_of"]

BATCHES = (1, 128)
TYPES = ("float16", "float32")
"""Types of BART's kernels; the kernels of the others are checked in the first one alone."""
KB = 1024
GPUS = {
    "T4": Gpu(40, 64 * KB, 75),
    "A100": Gpu(108, 163 * KB, 80),
    "A10": Gpu(72, 99 * KB, 86),
    "L4": Gpu(58, 99 * KB, 89),
    "H200": Gpu(132, 227 * KB, 90),
    "B200": Gpu(148, 227 * KB, 100),
    "RTX 5090": Gpu(170, 99 * KB, 120),
}
"""A GPU of each compute capability that the documents name."""


@dataclass
class Largest:
    """The most that any call makes of one kernel on one GPU: the counts of a `Budget`."""

    instructions: int = 0
    registers: int = 0
    shared_bytes: int = 0
    spills: int = 0
    byte_loads: int = 0

    def add(self, counts: Counts, shared_bytes: int) -> None:
        """Take note of a launch of the kernel."""
        self.shared_bytes = max(self.shared_bytes, shared_bytes)
        for name, count in vars(counts).items():
            setattr(self, name, max(getattr(self, name), count))


def launches_on(gpu: Gpu) -> Iterator[tuple[str, Kernel]]:
    """Yield every kernel that a call of the models launches, with the folder of its operator."""
    for name, model in MODELS.items():
        for B in BATCHES:
            for call in calls_of(model, B):
                for float_type in TYPES[: 2 if name == "BART-large" else 1]:
                    for kernel in plan_of(call, gpu, float_type).kernels:
                        yield OPERATORS[call.operator].folder, kernel


def faults_of(name: str, found: Largest, budget: Budget | None) -> list[str]:
    """List the counts beyond a budget, one text each.

    Parameters
    ----------
    name : str
        Name of the kernel, and of the compute capability.
    found : Largest
        Its counts.
    budget : Budget or None
        Their upper bounds; None if ``budgets.py`` does not name the kernel.
    """
    if budget is None:
        return [f"{name} has no budget; expected one in tools/cuda_check/budgets.py"]
    compared = (
        ("instructions", found.instructions, budget.instructions),
        ("registers", found.registers, budget.registers),
        ("bytes of shared memory", found.shared_bytes, budget.shared_bytes),
        ("loads and stores of spilled registers", found.spills, 0),
        ("byte loads from shared memory", found.byte_loads, 0),
    )
    return [f"{name} has {has:,} {what}, expected at most {most:,}" for what, has, most in compared if has > most]


def check(gpus: Iterable[Gpu]) -> list[str]:
    """Print a line for each kernel and return the faults."""
    faults = []
    for gpu in gpus:
        largest: dict[str, Largest] = {}
        try:
            for folder, kernel in launches_on(gpu):
                name = kernel.name.replace("tightbeam::device::", "")
                counts = counts_of(folder, kernel.name, gpu.capability)
                largest.setdefault(name, Largest()).add(counts, kernel.shared_bytes)
        except TensorRTError as error:
            faults.append(f"sm_{gpu.capability}: {error}")
        for name, found in sorted(largest.items()):
            print(
                f"sm_{gpu.capability:3} {name:70} instructions {found.instructions:6}, registers {found.registers:3}, "
                f"shared bytes {found.shared_bytes:7}, spills {found.spills:4}, byte loads {found.byte_loads:3}",
                flush=True,
            )
            faults += faults_of(f"{name}, sm_{gpu.capability},", found, BUDGETS.get(name))
    return faults


def main(
    capability: Annotated[str, typer.Option(help="Compute capabilities, separated by commas; all by default.")] = "",
) -> None:
    """Check the kernels; the exit code is 1 if one is beyond its budget or does not compile."""
    wanted = set(filter(None, capability.split(",")))
    known = {str(gpu.capability): gpu for gpu in GPUS.values()}
    if unknown := sorted(wanted - known.keys()):
        raise SystemExit(f"error: --capability {', '.join(unknown)} is unknown; expected some of {', '.join(known)}")
    faults = check(gpu for name, gpu in known.items() if not wanted or name in wanted)
    if faults:
        raise SystemExit("\n".join(f"error: {fault}" for fault in faults))
    print("every kernel is within its budget")


if __name__ == "__main__":
    typer.run(main)
