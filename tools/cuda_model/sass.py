"""SASS as ``nvdisasm -gi`` prints it, read into instructions with their labels and source lines."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Instruction", "Listing", "Place", "parse", "reduced"]

Place = tuple[str, int]
"""A source file and a line of it, from 1."""
SECTION = re.compile(r"^\s*\.section\s+\.text\.(\S+?),")
OTHER_SECTION = re.compile(r"^\s*\.section\s+\.(?!text\.)")
SOURCE = re.compile(r'//## File "(.*?)", line (\d+)(?: inlined at "(.*?)", line (\d+))?')
LABEL = re.compile(r"^(\.L_x_\d+|\$\S+|_\w+):")
CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
SPLIT = re.compile(r"(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*)")
TARGET = re.compile(r"`\((\.L_x_\d+|\$\S+|[\w.$]+)\)")
REGISTERS = re.compile(r"EIATTR_REGCOUNT.*?\.word\s+index@\((.*?)\).*?\.word\s+(0x[0-9a-f]+)", re.DOTALL)


@dataclass(frozen=True)
class Instruction:
    """One machine instruction. ``guard``: its predicate, such as "@!P0", or ""; ``places``: source lines, innermost
    first, then those that it was inlined at.
    """

    address: int
    guard: str
    opcode: str
    operands: str
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        """Opcode without modifiers, such as "LDS"."""
        return self.opcode.partition(".")[0]

    @property
    def target(self) -> str | None:
        """Label that it names."""
        found = TARGET.search(self.operands)
        return found[1] if found else None

    def lines(self) -> Iterator[str]:
        """Texts of its source lines."""
        for path, number in self.places:
            yield linecache.getline(path, number).strip()


@dataclass(frozen=True)
class Listing:
    """The code of one kernel. ``labels``: index of the instruction that each one stands before; ``cold``: index of the
    first instruction of the subroutines that stand behind it.
    """

    registers: int
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    cold: int


def reduced(disassembly: str, symbol: str) -> str:
    """The part of nvdisasm's output that :func:`parse` reads, a tenth of it: worth keeping on disk."""
    registers = next((int(found[2], 16) for found in REGISTERS.finditer(disassembly) if found[1] == symbol), 0)
    kept, inside = [f"// registers: {registers}"], False
    for line in disassembly.splitlines():
        if found := SECTION.match(line):
            inside = found[1] == symbol
        elif OTHER_SECTION.match(line):
            inside = False
        elif inside and (SOURCE.search(line) or LABEL.match(line) or CODE.search(line)):
            kept.append(line.strip())
    return "\n".join(kept) + "\n"


def parse(text: str) -> Listing:
    """Read what :func:`reduced` left.

    Raises
    ------
    ValueError
        There is no instruction in it.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    places: list[Place] = []
    chained = False
    cold = -1
    lines = text.splitlines()
    for line in lines[1:]:
        if found := SOURCE.search(line):
            if not chained:
                places = []
            places.append((found[1], int(found[2])))
            chained = found[3] is not None
        elif found := LABEL.match(line):
            labels[found[1]] = len(instructions)
            if found[1].startswith("$") and cold < 0 and instructions:
                cold = len(instructions)
        elif (found := CODE.search(line)) and (part := SPLIT.match(found[2].strip("{} \t"))):
            chained = False
            instructions.append(Instruction(int(found[1], 16), part[1] or "", part[2], part[3], tuple(places)))
    if not instructions:
        raise ValueError("the disassembly holds no instruction")
    registers = int(lines[0].rpartition(":")[2])
    return Listing(registers, tuple(instructions), labels, cold if cold >= 0 else len(instructions))
