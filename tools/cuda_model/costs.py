"""Cost of machine instructions: which pipe takes a warp's instruction, for how many cycles, and what it moves.

A multiprocessor has four quarters; each issues one warp instruction a cycle, to pipes that may need longer. Widths are
those of the CUDA programming guide's table of arithmetic throughput. Integers go through a pipe of 16 lanes and take
two cycles, but for 32 lanes on 10.0 and later. Memory instructions share one pipe of the multiprocessor, 128 bytes a
cycle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tools.cuda_model.sass import Instruction

__all__ = ["Cost", "cost_of", "is_byte_load", "is_spill", "kind_of"]

INTEGER = set(
    "IADD3 IADD LOP3 LOP ISETP SEL SHF LEA PRMT VIADD VIMNMX IMNMX IABS PLOP3 SGXT BMSK LOP32I IADD32I MOV32I SHL SHR "
    "VOTE VIADDMNMX ISCADD MOV CS2R P2R R2P ICMP VABSDIFF FMNMX FSETP FSEL FMNMX3 VIMNMX3 HMNMX2 FSET FCHK NOP".split()
)
"""Through the pipe of 16 lanes that also takes comparisons of floats."""
PRODUCTS = {"IMAD", "IMUL", "IDP", "XMAD"}
"""Products of integers: on half of the lanes of the float pipe."""
FLOAT = set("FFMA FADD FMUL HADD2 HFMA2 HMUL2 FSWZADD FADD2 FFMA2 FMUL2 F2FP HSET2 HSETP2 HFMA2_MMA FFMA32I".split())
SPECIAL = {"MUFU", "F2F", "I2F", "F2I", "FRND", "POPC", "FLO", "BREV", "I2FP", "I2IP", "F2IP"}
TENSOR = {"HMMA", "HGMMA", "IMMA", "QGMMA", "UTCHMMA"}
SHARED = {"LDS", "STS", "LDSM", "STSM", "ATOMS", "SHFL", "ATOMSHFL", "REDUX", "CREDUX", "MATCH", "MOVM"}
GLOBAL = {"LDG", "STG", "ATOMG", "RED", "LD", "ST", "ATOM", "LDGMC"}
ASYNC = {"LDGSTS", "UBLKCP", "UTMALDG", "LDGDEPBAR", "DEPBAR"}
LOCAL = {"LDL", "STL"}
CONTROL = set("BRA EXIT RET CALL BSSY BSYNC BREAK WARPSYNC BAR YIELD ERRBAR MEMBAR NANOSLEEP BRX JMP BMOV CCTL".split())
GROUPS: dict[str, set[str]] = {
    "integer": INTEGER | PRODUCTS,
    "float": FLOAT,
    "tensor": TENSOR,
    "special": SPECIAL,
    "shared": SHARED,
    "global": GLOBAL,
    "async": ASYNC,
    "local": LOCAL,
    "control": CONTROL,
}


@dataclass
class Cost:
    """The work of one warp. ``cycles``: of each pipe, in cycles of a quarter; ``memory_cycles``: of the
    multiprocessor's memory pipe; ``loaded_bytes``: from global memory if all lanes take part.
    """

    instructions: float = 0.0
    cycles: Counter[str] = field(default_factory=Counter)
    memory_cycles: float = 0.0
    loaded_bytes: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Cost, times: float = 1.0) -> None:
        """Add what is executed ``times`` times."""
        self.instructions += times * other.instructions
        self.memory_cycles += times * other.memory_cycles
        self.loaded_bytes += times * other.loaded_bytes
        for name, number in other.cycles.items():
            self.cycles[name] += times * number  # type: ignore[assignment]
        for name, number in other.kinds.items():
            self.kinds[name] += times * number  # type: ignore[assignment]


def kind_of(instruction: Instruction) -> str:
    """The kind of an instruction: one of ``GROUPS``, "uniform" or "other"."""
    name = instruction.name
    for kind, names in GROUPS.items():
        if name in names:
            return kind
    return "uniform" if name.startswith("U") or name in ("R2UR", "S2UR", "LDC", "LDCU", "S2R") else "other"


def is_spill(instruction: Instruction) -> bool:
    """True for a load or store of a thread's local memory."""
    return instruction.name in LOCAL


def is_byte_load(instruction: Instruction) -> bool:
    """True for a load of one byte a lane from shared memory."""
    return instruction.name == "LDS" and re.search(r"\.[US]8\b", instruction.opcode) is not None


def cost_of(instructions: Iterable[Instruction], capability: str) -> Cost:
    """Cost of instructions that are executed once each."""
    total = Cost()
    wide = int(capability) >= 100
    slow_float = capability in ("75", "80")
    for instruction in instructions:
        name, kind = instruction.name, kind_of(instruction)
        total.instructions += 1
        total.kinds[kind] += 1
        if instruction.guard == "@!PT":  # takes its place in the queue, does nothing
            continue
        if name in PRODUCTS:
            total.cycles["float pipe"] += 1 if wide else 2
        elif kind == "integer":
            total.cycles["integer pipe"] += 1 if wide else 2
        elif kind == "float":
            total.cycles["float pipe"] += 2 if slow_float or name == "F2FP" else 1
        elif kind == "special":
            total.cycles["special pipe"] += 8
        elif kind == "tensor":
            total.cycles["tensor"] += 1
        elif kind == "uniform":
            total.cycles["uniform pipe"] += 2
        if kind in ("shared", "global", "async", "local"):
            width = _bytes(instruction)
            total.memory_cycles += max(1.0, 32 * width / 128)
            if name in ("LDG", "LDGSTS"):
                total.loaded_bytes += 32 * width
    return total


def _bytes(instruction: Instruction) -> int:
    """Bytes of a lane."""
    if instruction.name in ("LDSM", "STSM", "MOVM"):
        return 16 if ".4" in instruction.opcode else 8 if ".2" in instruction.opcode else 4
    if instruction.name in ("SHFL", "REDUX", "CREDUX", "MATCH", "DEPBAR", "LDGDEPBAR"):
        return 4
    for text, width in ((".128", 16), (".64", 8), (".U8", 1), (".S8", 1), (".U16", 2), (".S16", 2)):
        if re.search(re.escape(text) + r"\b", instruction.opcode):
            return width
    return 4
