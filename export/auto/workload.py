"""The workload of a bundle: samples, beams and tokens of a run, and memory and speed of its machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from tightbeam.export.auto.gpus import gpu_machine
from tightbeam.export.auto.machine import this_machine
from tightbeam.export.checkpoint.config import longest_output
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import RunSize, Sizes
from tightbeam.graph_passes.caches.cost import Machine

__all__ = ["Workload", "parse_bytes"]

UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
TYPICAL_SOURCE = 512
MOST_BYTES = 10**15


@dataclass(frozen=True)
class Workload:
    """Sizes of the runs that a bundle is made for, and the machine that runs it.

    Attributes
    ----------
    batch_size : int
        Samples of a run.
    num_beams : int or None
        Beams of a sample; the checkpoint's by default.
    source_length : int or None
        Tokens of a source; 512 by default, or the model's limit where that is less.
    new_tokens : int or None
        Tokens of an output; the bundle's longest by default.
    memory_limit : int or None
        Upper bound on the bytes of weights and caches; none by default.
    bandwidth_gb_s : float or None
        Memory bandwidth of the serving machine; measured on this machine by default.
    gflop_s : float or None
        Matrix rate of the serving machine; measured on this machine by default.
    gpu : str or None
        Name of the serving machine's GPU, whose kernels' times in float16 are computed; in place of both rates.

    Raises
    ------
    ExportError
        A number is out of range.
    """

    batch_size: int = 8
    num_beams: int | None = None
    source_length: int | None = None
    new_tokens: int | None = None
    memory_limit: int | None = None
    bandwidth_gb_s: float | None = None
    gflop_s: float | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_beams", "source_length", "new_tokens", "bandwidth_gb_s", "gflop_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 2**31:
                raise ExportError(f"{name}={value} is out of range; expected more than 0 and less than {2**31:,}")
        if self.gpu is not None:
            if (self.bandwidth_gb_s, self.gflop_s) != (None, None):
                raise ExportError("gpu has a bandwidth and a matrix rate of its own; leave those two out, or the GPU")
            gpu_machine(self.gpu)

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
            A length exceeds the model's positions, or is not the one that sources have.
        """
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
            Measured on this machine where they are not given.
        str
            Where the numbers come from, in words.
        """
        if self.gpu is not None:
            return gpu_machine(self.gpu), f"{self.gpu}, computed from its kernels' machine code"
        if self.bandwidth_gb_s is not None and self.gflop_s is not None and not integers:
            return Machine(self.bandwidth_gb_s * 1e9, self.gflop_s * 1e9), "as given"
        here = this_machine(integers=integers)
        bandwidth = here.machine.bandwidth if self.bandwidth_gb_s is None else self.bandwidth_gb_s * 1e9
        rate = here.machine.rate if self.gflop_s is None else self.gflop_s * 1e9
        return replace(here.machine, bandwidth=bandwidth, rate=rate), here.origin()


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
