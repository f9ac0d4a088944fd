"""`make cuda-check`: each kernel that the models of ``shapes.py`` start, beside its budget, on each compute capability.

python -m tools.cuda_model.check --capability 90,120
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from tightbeam.plugins.tensorrt.errors import TensorRTError
from tools.cuda_model.budgets import BUDGETS, Budget
from tools.cuda_model.gpus import CHECKED, Device
from tools.cuda_model.model import KernelFloors, floors_of
from tools.cuda_model.shapes import MODELS, calls_of

__all__ = ["Largest", "faults_of", "kernels_of"]

BATCHES = (1, 128)
TYPES = ("float16", "float32")
"""Types of BART's kernels; those of the others are checked in the first one alone."""


@dataclass
class Largest:
    """The most that any call makes of one kernel on one GPU."""

    instructions: int = 0
    turn: float = 0.0
    spills: int = 0
    byte_loads: int = 0

    def add(self, one: KernelFloors) -> None:
        self.instructions = max(self.instructions, one.instructions)
        self.turn = max(self.turn, one.turn)
        self.spills = max(self.spills, one.spills)
        self.byte_loads = max(self.byte_loads, one.byte_loads)


def kernels_of(device: Device) -> Iterator[KernelFloors]:
    """Every kernel that a call of the models starts on a GPU, once a call."""
    for model in MODELS.values():
        for B in BATCHES:
            for call in calls_of(model, B):
                for float_type in TYPES[: 2 if model.name == "BART-large" else 1]:
                    yield from floors_of(call, device, float_type).kernels


def faults_of(name: str, found: Largest, budget: Budget | None) -> list[str]:
    """List the figures beyond a budget, one text each.

    Parameters
    ----------
    name
        Name of the kernel, and of the compute capability.
    found
        Its measured numbers.
    budget
        Its upper bounds; None where ``budgets.py`` does not name it.
    """
    if budget is None:
        return [f"{name} has no budget; expected one in tools/cuda_model/budgets.py"]
    compared = (
        ("instructions", found.instructions, budget.instructions),
        ("instructions in a turn of its longest loop", round(found.turn), budget.turn),
        ("loads and stores of spilled registers", found.spills, budget.spills),
        ("byte loads from shared memory", found.byte_loads, budget.byte_loads),
    )
    return [f"{name} has {has} {what}, expected at most {most}" for what, has, most in compared if has > most]


def check(devices: Iterable[Device]) -> list[str]:
    """Print a line for each kernel and return the faults."""
    faults = []
    for device in devices:
        largest: dict[str, Largest] = {}
        try:
            for one in kernels_of(device):
                largest.setdefault(one.name, Largest()).add(one)
        except TensorRTError as error:
            faults.append(f"sm_{device.capability}: {error}")
        for name, found in sorted(largest.items()):
            print(
                f"sm_{device.capability:3} {name:70} instructions {found.instructions:6}, in a turn {found.turn:6.0f}, "
                f"spills {found.spills:4}, byte loads {found.byte_loads:3}",
                flush=True,
            )
            faults += faults_of(f"{name}, sm_{device.capability},", found, BUDGETS.get(name))
    return faults


def main(
    capability: Annotated[str, typer.Option(help="Compute capabilities, separated by commas; all by default.")] = "",
) -> None:
    """Check the kernels; the exit code is 1 where one is beyond its budget or does not compile."""
    wanted = set(filter(None, capability.split(",")))
    unknown = wanted - {device.capability for device in CHECKED}
    if unknown:
        known = ", ".join(device.capability for device in CHECKED)
        raise SystemExit(f"error: --capability {', '.join(sorted(unknown))} is not known; expected some of {known}")
    faults = check(device for device in CHECKED if not wanted or device.capability in wanted)
    if faults:
        raise SystemExit("\n".join(f"error: {fault}" for fault in faults))
    print("every kernel is within its budget")


if __name__ == "__main__":
    typer.run(main)
