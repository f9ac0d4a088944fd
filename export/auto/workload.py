"""The workload of a bundle: samples, beams and tokens of a run, and memory and speed of its machine.

What its methods need is imported inside them, so that ``export-model --help`` does not wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

from tightbeam.export.errors import ExportError
from tightbeam.export.option import Option, check_options

if TYPE_CHECKING:
    from tightbeam.graph_passes import RunSize, Sizes
    from tightbeam.graph_passes.caches.cost import Machine

__all__ = ["Workload", "parse_bytes"]

UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
TYPICAL_SOURCE = 512
MOST_BYTES = 10**15


def parse_bytes(text: str) -> int:
    """Parse an amount of memory such as ``2GB``, ``1.5 GiB`` or ``7b`` to bytes. Raises ExportError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?b?|b)\s*", text.lower())
    unit = found.group(2) if found else ""
    unit += "b" if unit and not unit.endswith("b") else ""
    if found is None or (unit not in UNITS and unit != "b"):
        raise ExportError(f"{text!r} is not an amount of memory; expected a number with a unit, such as 2GB or 512MiB")
    count = Decimal(found.group(1)) * UNITS.get(unit, 1)  # in float 8.2MB would be 8,199,999 bytes
    if not 1 <= count < MOST_BYTES:
        raise ExportError(f"{text[:40]!r} is not an amount of memory; expected more than 0 and less than 1,000 TB")
    return int(count)


def _positive(name: str) -> Callable[[Workload], None]:
    """Make the check of a number."""

    def check(workload: Workload) -> None:
        value = getattr(workload, name)
        if value is not None and not 0 < value < 2**31:
            raise ExportError(f"{name}={value} is out of range; expected more than 0 and less than {2**31:,}")

    return check


def _check_gpu(workload: Workload) -> None:
    """Check that the GPU is known, and that neither ``bandwidth_gb_s`` nor ``gflop_s`` is given beside it."""
    from tightbeam.export.auto.gpus import gpu_machine

    if workload.gpu is not None:
        if (workload.bandwidth_gb_s, workload.gflop_s) != (None, None):
            raise ExportError("gpu has a bandwidth and a matrix rate of its own; leave those two out, or the GPU")
        gpu_machine(workload.gpu)


@dataclass(frozen=True)
class Workload:
    """Sizes of the runs that a bundle is made for, and the machine that runs it. Raises ExportError for wrong ones."""

    batch_size: Annotated[
        int,
        Option(
            "Inputs that run together, in the run for which the cache is reported, --variant auto chooses and "
            "--memory-limit counts.",
            _positive("batch_size"),
        ),
    ] = 8
    num_beams: Annotated[
        int | None,
        Option(
            "Beams of each input in the run for which the cache is reported, --variant auto chooses and "
            "--memory-limit counts; the checkpoint's by default.",
            _positive("num_beams"),
        ),
    ] = None
    source_length: Annotated[
        int | None,
        Option(
            "Tokens of each source or prompt in the run for which the cache is reported, --variant auto chooses and "
            "--memory-limit counts; by default the most that the model takes, but at most 512.",
            _positive("source_length"),
        ),
    ] = None
    new_tokens: Annotated[
        int | None,
        Option(
            "New tokens of each output in the run for which the cache is reported, --variant auto chooses and "
            "--memory-limit counts; by default the bundle's longest output.",
            _positive("new_tokens"),
        ),
    ] = None
    memory_limit: Annotated[
        int | None,
        Option(
            "Limit on the bytes of weights and caches, such as 2GB: --variant auto chooses within it, and any other "
            "variant that exceeds it is an error.",
            parse=parse_bytes,
        ),
    ] = None
    bandwidth_gb_s: Annotated[
        float | None,
        Option(
            "Memory bandwidth of the serving machine in GB/s, from which --variant auto and --dry-run predict times; "
            "by default this machine's, which is measured.",
            _positive("bandwidth_gb_s"),
        ),
    ] = None
    gflop_s: Annotated[
        float | None,
        Option(
            "Matrix rate of the serving machine in GFLOP/s, from which --variant auto and --dry-run predict times; "
            "by default this machine's, which is measured.",
            _positive("gflop_s"),
        ),
    ] = None
    gpu: Annotated[
        str | None,
        Option(
            "GPU of the serving machine (H200, A100, L4, RTX 5090), for which --variant auto and --dry-run predict "
            "times; with --precision fp16.",
            _check_gpu,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)

    def run_size(self, sizes: Sizes, defaults: Mapping[str, Any], itemsize: int = 4, *, whole: bool = False) -> RunSize:
        """Sizes of the run, with the checkpoint's defaults for what is not given.

        Parameters
        ----------
        sizes
            Sizes of the model, which limit the lengths.
        defaults
            The checkpoint's generation settings.
        itemsize
            Bytes of a number in the caches.
        whole
            Sources have one length: windows of audio, or images.

        Returns
        -------
        RunSize
            B, M, N and T.

        Raises
        ------
        ExportError
            A length exceeds the model's positions, or differs from the one length that sources have.
        """
        from tightbeam.export.checkpoint.config import longest_output
        from tightbeam.graph_passes import RunSize

        for name, length, limit in (
            ("source_length", self.source_length, sizes.max_source),
            ("new_tokens", self.new_tokens, sizes.max_target),
        ):
            if length is not None and length > limit:
                raise ExportError(f"{name}={length} exceeds the model's {limit} positions; pass a smaller number")
        source = sizes.max_source if whole else min(TYPICAL_SOURCE, sizes.max_source)
        if whole and self.source_length not in (None, source):
            raise ExportError(
                f"source_length={self.source_length}: the audio or image that this model reads has {source} "
                "positions, always; leave --source-length out"
            )
        return RunSize(
            B=self.batch_size,
            M=self.num_beams or int(defaults.get("num_beams") or RunSize.M),
            N=self.source_length or source,
            T=self.new_tokens or longest_output(defaults, sizes.max_target),
            itemsize=itemsize,
        )

    def machine(self, *, integers: bool = False) -> tuple[Machine, str]:
        """Bandwidth and matrix rate of the serving machine.

        Parameters
        ----------
        integers
            With the rates of int8, which are measured on this machine.

        Returns
        -------
        Machine
            The given numbers, or what was measured on this machine.
        str
            Where the numbers come from, in words.
        """
        from tightbeam.export.auto.gpus import gpu_machine
        from tightbeam.export.auto.machine import this_machine
        from tightbeam.graph_passes.caches.cost import Machine

        if self.gpu is not None:
            return gpu_machine(self.gpu), f"{self.gpu}, computed from its kernels' machine code"
        if self.bandwidth_gb_s is not None and self.gflop_s is not None and not integers:
            return Machine(self.bandwidth_gb_s * 1e9, self.gflop_s * 1e9), "as given"
        here = this_machine(integers=integers)
        bandwidth = here.machine.bandwidth if self.bandwidth_gb_s is None else self.bandwidth_gb_s * 1e9
        rate = here.machine.rate if self.gflop_s is None else self.gflop_s * 1e9
        return replace(here.machine, bandwidth=bandwidth, rate=rate), here.origin()
