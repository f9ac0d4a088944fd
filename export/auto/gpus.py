"""GPUs whose kernels' times are known: computed from their machine code, not measured."""

from __future__ import annotations

import json
from pathlib import Path

from tightbeam.export.errors import ExportError
from tightbeam.graph_passes.caches.cost import Machine

__all__ = ["RATES", "gpu_machine"]

RATES = Path(__file__).with_name("gpu_rates.json")
"""By GPU: the datasheet's bandwidth and matrix rate, and (operations, seconds) of each operator's calls in float16 at
BART-large's sizes, by batch; computed once, from the kernels of commit 156bb09 (docs/explanation/cuda-kernels.md)."""


def gpu_machine(name: str) -> Machine:
    """Return the numbers of a GPU. Raises ExportError for one that is not known."""
    known = json.loads(RATES.read_text("utf-8"))
    by_name = {gpu.lower(): entry for gpu, entry in known.items()}
    if name.lower() not in by_name:
        raise ExportError(
            f"no times are known for the GPU {name!r}; expected {', '.join(known)}, or the rates of another: "
            "--bandwidth-gb-s and --gflop-s"
        )
    entry = by_name[name.lower()]
    kernels = {operator: [(size, s) for size, s in calls] for operator, calls in entry["kernels"].items()}
    return Machine(entry["bytes_per_s"], entry["flops_per_s"], kernels=kernels)
