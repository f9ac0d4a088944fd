"""Floors of a call: what its kernels must execute, load and move, and the share of the roofline that this allows."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.tensorrt.native import Kernel, Plan, TensorAt, plan
from tools.cuda_model.compiled import listing_of
from tools.cuda_model.costs import Cost, cost_of, is_byte_load, is_spill
from tools.cuda_model.flow import Block, Flow, flow_of
from tools.cuda_model.gpus import Device
from tools.cuda_model.parameters import arguments_of, sources_of, template_values
from tools.cuda_model.rules import COLD, LOOPS, names_of
from tools.cuda_model.sass import Listing
from tools.cuda_model.shapes import OpCall
from tools.cuda_model.trips import Names, trips_of

__all__ = ["CallFloors", "KernelFloors", "floors_of", "plan_of"]

MMA_FLOPS = 2 * 16 * 8 * 16
"""Operations of one mma.sync of a warp."""
MEMORY_SHARE = 0.9
"""Part of the datasheet's bandwidth that a copy reaches."""
LATENCY = 1.4
"""Time over the issue floor where instructions are the limit: assumed, for waits that no other warp fills."""
LAUNCH_S = 2e-6
"""Begin and end of a kernel in a CUDA graph: assumed."""


@dataclass(frozen=True)
class KernelFloors:
    """One kernel on one GPU. ``spills``, ``byte_loads``: instructions of its code; ``blocks_at_once``: of a
    multiprocessor; ``turns``: of the loop in which a warp executes most, ``turn``: instructions of one, inner loops
    included; ``cost``: of one warp; ``parts``: seconds of the busiest multiprocessor by what limits it; ``unknown``:
    loops that are counted once.
    """

    name: str
    instructions: int
    registers: int
    shared_bytes: int
    spills: int
    byte_loads: int
    blocks: int
    warps: int
    blocks_at_once: int
    turns: float
    turn: float
    cost: Cost
    parts: dict[str, float]
    unknown: tuple[str, ...]

    @property
    def executed_s(self) -> float:
        """Least time of the busiest multiprocessor."""
        return max(self.parts.values())

    @property
    def limit(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda name: self.parts[name])


@dataclass(frozen=True)
class CallFloors:
    """A call on one GPU. ``floor_s``: its roofline; ``bytes_s``: with what its own splits write and read again."""

    call: OpCall
    kernels: tuple[KernelFloors, ...]
    floor_s: float
    bytes_s: float

    @property
    def executed_s(self) -> float:
        return sum(kernel.executed_s for kernel in self.kernels)

    @property
    def allowed(self) -> float:
        """Share of the roofline that no run can be above."""
        return self.floor_s / max(self.bytes_s, self.executed_s)

    @property
    def expected_s(self) -> float:
        """Time with the assumed losses of memory and of waiting."""
        return max(self.bytes_s / MEMORY_SHARE, LATENCY * self.executed_s) + LAUNCH_S * len(self.kernels)

    @property
    def expected(self) -> float:
        """Share of the roofline with the assumed losses."""
        return self.floor_s / self.expected_s


def plan_of(call: OpCall, device: Device, float_type: str = "float16") -> Plan:
    """The C++ launch plan of a call, whose tensors lie at addresses that are aligned and never read."""
    address = 1 << 20
    tensors: list[dict[str, TensorAt]] = []
    aliases = {output: name for name, output in call.in_place}
    for shapes in (call.inputs, call.outputs):
        placed = {}
        for name, shape in shapes.items():
            placed[name] = TensorAt(shape, address)
            address += 256 + 8 * math.prod(shape) // 256 * 256
        tensors.append(placed)
    inputs, outputs = tensors
    outputs = {name: inputs[aliases[name]] if name in aliases else at for name, at in outputs.items()}
    return plan(call.operator, float_type, inputs, outputs, call.attributes, device.gpu, 1 << 44)


def floors_of(call: OpCall, device: Device, float_type: str = "float16") -> CallFloors:
    """Plan, compile and count a call. The bytes of the floor are those of float16.

    Raises
    ------
    TensorRTError
        The call cannot be planned, or a kernel does not compile.
    """
    folder = OPERATORS[call.operator].folder
    planned = plan_of(call, device, float_type)
    arguments = [arguments_of(folder, kernel) for kernel in planned.kernels]
    kernels = tuple(
        _kernel(folder, kernel, given, call, device) for kernel, given in zip(planned.kernels, arguments, strict=True)
    )
    floor_s = max(call.nbytes / device.bytes_per_s, call.flops / device.flops_per_s)
    again = 2 * planned.workspace_bytes if len(kernels) > 1 else 0
    return CallFloors(call, kernels, floor_s, (call.nbytes + again) / device.bytes_per_s)


@functools.lru_cache(maxsize=32)
def _code(folder: str, name: str, capability: str) -> tuple[Listing, Flow]:
    listing = listing_of(folder, name, capability)
    return listing, flow_of(listing)


def _kernel(folder: str, kernel: Kernel, given: Mapping[str, float], call: OpCall, device: Device) -> KernelFloors:
    listing, flow = _code(folder, kernel.name, device.capability)
    base = {**call.sizes, **given, **template_values(folder, kernel.name), "block": kernel.block}
    for axis, number in zip("xyz", kernel.grid, strict=True):
        base[f"grid_{axis}"] = number
    bare = kernel.name.partition("<")[0].rpartition("::")[2]
    names = Names(names_of(bare, base), sources_of(folder))
    trips = trips_of(flow, names, LOOPS)
    cold = [pattern for pattern, condition in COLD.items() if condition(base)]
    turning = {loop.header for loop, count in zip(flow.loops, trips.counts, strict=True) if count}
    path = flow.path(lambda block: _is_cold(block, cold), lambda loop: loop.header in turning)
    cost, inside = Cost(), [0.0] * len(flow.loops)
    for index in path:
        around = [i for i, loop in enumerate(flow.loops) if index in loop.blocks]
        times = math.prod(trips.counts[i] for i in around)
        cost.add(cost_of(flow.blocks[index].instructions, device.capability), times)
        for i in around:
            inside[i] += times * len(flow.blocks[index].instructions)
    most = max((i for i, loop in enumerate(flow.loops) if loop.parent is None), key=inside.__getitem__, default=None)
    turns = trips.counts[most] if most is not None else 0.0
    blocks, warps = math.prod(kernel.grid), -(-kernel.block // 32)
    code = listing.instructions
    return KernelFloors(
        kernel.name.replace("tightbeam::device::", ""),
        len(code),
        listing.registers,
        kernel.shared_bytes,
        sum(map(is_spill, code)),
        sum(map(is_byte_load, code)),
        blocks,
        warps,
        device.blocks_at_once(kernel.block, listing.registers, kernel.shared_bytes),
        turns,
        inside[most] / turns if most is not None and turns else 0.0,
        cost,
        _parts(cost, blocks, warps, device),
        tuple(dict.fromkeys(line for i, line in trips.unknown.items() if flow.loops[i].header in path)),
    )


def _is_cold(block: Block, patterns: list[str]) -> bool:
    """True where most of a block's instructions come from a line that this call does not execute."""
    if not patterns:
        return False
    joined = re.compile("|".join(patterns))
    hits = sum(any(joined.search(line) for line in one.lines()) for one in block.instructions)
    return 2 * hits > len(block.instructions)


def _parts(cost: Cost, blocks: int, warps: int, device: Device) -> dict[str, float]:
    """Seconds that the multiprocessor with most blocks needs, by what limits it."""
    busiest = -(-blocks // device.multiprocessors) * warps  # warps
    quarter = -(-busiest // 4)
    clock = device.clock_hz
    parts = {"issue": quarter * cost.instructions / clock}
    for name, cycles in cost.cycles.items():
        if name != "tensor":
            parts[name] = quarter * cycles / clock
    rate = device.flops_per_s * device.mma_share / device.multiprocessors
    parts["tensor"] = busiest * cost.cycles["tensor"] * MMA_FLOPS / rate
    parts["memory pipe"] = busiest * cost.memory_cycles / clock
    parts["loads"] = busiest * cost.loaded_bytes / (64 * clock)
    return parts
