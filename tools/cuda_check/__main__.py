"""`make cuda-check`: each kernel that the models of ``calls.py`` launch, beside its budget, on each compute capability.

python -m tools.cuda_check --capability 90,120
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import typer

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.native import Gpu, Kernel
from tools.cuda_check.budgets import BUDGETS, Budget
from tools.cuda_check.calls import MODELS, calls_of, plan_of
from tools.cuda_check.machine_code import counts_of

__all__ = ["GPUS", "WORDS", "check", "faults_of"]

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


WORDS = {
    "instructions": "instructions",
    "registers": "registers",
    "shared_bytes": "bytes of shared memory",
    "spills": "loads and stores of spilled registers",
    "byte_loads": "byte loads from shared memory",
}
"""What is counted of a kernel."""


def launches_on(gpu: Gpu) -> Iterator[tuple[str, Kernel]]:
    """Yield every kernel that a call of the models launches, with the folder of its operator."""
    for name, model in MODELS.items():
        for B in BATCHES:
            for call in calls_of(model, B):
                for float_type in TYPES[: 2 if name == "BART-large" else 1]:
                    for kernel in plan_of(call, gpu, float_type).kernels:
                        yield OPERATORS[call.operator].folder, kernel


def faults_of(name: str, found: Mapping[str, int], budget: Budget | None) -> list[str]:
    """List the counts beyond a budget, one text each.

    Parameters
    ----------
    name : str
        Name of the kernel, and of the compute capability.
    found : mapping of str to int
        The most that any call makes of it, by the keys of ``WORDS``.
    budget : Budget or None
        Their upper bounds; None if ``budgets.py`` does not name the kernel. No kernel may spill or load bytes.
    """
    if budget is None:
        return [f"{name} has no budget; expected one in tools/cuda_check/budgets.py"]
    most = {what: getattr(budget, what, 0) for what in WORDS}
    over = [what for what in WORDS if found[what] > most[what]]
    return [f"{name} has {found[what]:,} {WORDS[what]}, expected at most {most[what]:,}" for what in over]


def check(gpus: Iterable[Gpu]) -> list[str]:
    """Print a line for each kernel and return the faults."""
    faults = []
    for gpu in gpus:
        largest: dict[str, dict[str, int]] = {}
        try:
            for folder, kernel in launches_on(gpu):
                found = largest.setdefault(kernel.name.replace("tightbeam::device::", ""), dict.fromkeys(WORDS, 0))
                counts = vars(counts_of(folder, kernel.name, gpu.capability))
                for what, count in {**counts, "shared_bytes": kernel.shared_bytes}.items():
                    found[what] = max(found[what], count)
        except TensorRTError as error:
            faults.append(f"sm_{gpu.capability}: {error}")
        for name, found in sorted(largest.items()):
            cells = ", ".join(f"{what} {count:6}" for what, count in found.items())
            print(f"sm_{gpu.capability:3} {name:70} {cells}", flush=True)
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
