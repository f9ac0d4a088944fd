"""Control flow of a kernel: basic blocks, loops, and the blocks that an ordinary warp passes through.

Branches are not known without running the code, so a rule decides (:meth:`Flow.path`): what an `if` without `else`
guards is executed; of two ways that meet again the one with asynchronous copies is taken, since the other is for what
is not aligned, else the one with a loop, else the one with fewer instructions; of two that do not meet the one with
more, since the other is an early end. Ways that begin with a block that the caller
calls cold are not taken where there is another. Ways that only a diverged warp takes and subroutines of the compiler
(slow paths of a division) are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tools.cuda_model.sass import Instruction, Listing

__all__ = ["Block", "Flow", "Loop", "flow_of"]

END = -1
"""Successor of the last block."""


@dataclass
class Block:
    """Instructions without a jump between them, and the blocks that may follow."""

    index: int
    instructions: tuple[Instruction, ...]
    after: tuple[int, ...] = ()


@dataclass
class Loop:
    """A natural loop. ``blocks``: with those of loops inside it; ``latches``: blocks that jump back to ``header``."""

    header: int
    blocks: frozenset[int]
    latches: tuple[int, ...]
    parent: Loop | None = field(default=None, repr=False)


@dataclass
class Flow:
    """Blocks and loops of one kernel; the first block is its entry."""

    blocks: list[Block]
    loops: list[Loop]

    def loops_of(self, block: int) -> list[Loop]:
        """Loops around a block, innermost first."""
        return sorted((loop for loop in self.loops if block in loop.blocks), key=lambda loop: len(loop.blocks))

    def path(
        self, cold: Callable[[Block], bool] = lambda block: False, turning: Callable[[Loop], bool] = lambda loop: True
    ) -> frozenset[int]:
        """The blocks that an ordinary warp passes through, each at least once.

        Parameters
        ----------
        cold
            True for blocks that are entered only where there is no other way.
        turning
            True for loops that make a trip.
        """
        headers = frozenset(loop.header for loop in self.loops if turning(loop))
        return _Walk(self, {block.index for block in self.blocks if cold(block)}, headers).path()


def flow_of(listing: Listing) -> Flow:
    """Split a listing into basic blocks and find its loops."""
    code, labels = listing.instructions[: listing.cold], listing.labels
    starts = {0, *(at for at in labels.values() if at < len(code))}
    starts |= {i + 1 for i, instruction in enumerate(code) if _jumps(instruction) and i + 1 < len(code)}
    ordered = sorted(starts)
    block_at = {start: index for index, start in enumerate(ordered)}
    joins = _joins(code)
    blocks = []
    for index, start in enumerate(ordered):
        end = ordered[index + 1] if index + 1 < len(ordered) else len(code)
        after = []
        for at in _successors(code, end - 1, labels, joins):
            after.append(block_at.get(at, END))
        blocks.append(Block(index, code[start:end], tuple(dict.fromkeys(after))))
    return Flow(blocks, _loops(blocks))


def _jumps(instruction: Instruction) -> bool:
    return instruction.name in ("BRA", "EXIT", "RET", "BRX", "JMP", "JMX", "BSYNC", "BREAK")


def _conditional(instruction: Instruction) -> bool:
    if instruction.guard:
        return instruction.guard not in ("@PT", "@UPT")
    first = instruction.operands.partition("`")[0]
    return instruction.name == "BRA" and re.search(r"!?\bU?P\d", first) is not None


def _joins(code: tuple[Instruction, ...]) -> dict[int, str]:
    """Index of each BSYNC -> label of the BSSY before it on the same barrier."""
    found, last = {}, {}
    for i, instruction in enumerate(code):
        barrier = instruction.operands.split(",")[0].strip()
        if instruction.name == "BSSY" and instruction.target:
            last[barrier] = instruction.target
        elif instruction.name == "BSYNC" and barrier in last:
            found[i] = last[barrier]
    return found


def _successors(code: tuple[Instruction, ...], last: int, labels: dict[str, int], joins: dict[int, str]) -> list[int]:
    """Indices of the instructions that may follow the last one of a block; beyond the code: its end."""
    instruction, end = code[last], len(code)
    following = last + 1
    if instruction.name in ("EXIT", "RET", "BRX", "JMX"):
        return [following] if _conditional(instruction) else [end]
    if instruction.name in ("BRA", "JMP"):
        if ".DIV" in instruction.opcode or ".CONV" in instruction.opcode:  # taken by a diverged warp alone
            return [following]
        to = labels.get(instruction.target or "", end)
        return [to, following] if _conditional(instruction) else [to]
    if instruction.name == "BSYNC" and last in joins:
        to = labels.get(joins[last], end)
        return [to, following] if _conditional(instruction) else [to]
    return [following]


def _loops(blocks: list[Block]) -> list[Loop]:
    dominators = _dominators([block.after for block in blocks], 0)
    before: dict[int, list[int]] = {block.index: [] for block in blocks}
    for block in blocks:
        for to in block.after:
            if to != END:
                before[to].append(block.index)
    latches: dict[int, list[int]] = {}
    for block in blocks:
        for to in block.after:
            if to != END and to in dominators.get(block.index, ()):
                latches.setdefault(to, []).append(block.index)
    loops = []
    for header, ends in latches.items():
        inside, waiting = {header}, list(ends)
        while waiting:
            block_index = waiting.pop()
            if block_index not in inside:
                inside.add(block_index)
                waiting += before[block_index]
        loops.append(Loop(header, frozenset(inside), tuple(ends)))
    for loop in loops:
        around = [other for other in loops if other is not loop and loop.blocks < other.blocks]
        loop.parent = min(around, key=lambda other: len(other.blocks), default=None)
    return loops


def _dominators(after: list[tuple[int, ...]], entry: int) -> dict[int, set[int]]:
    """Nodes that every way from ``entry`` to a node passes, for each node that can be reached."""
    order, seen = [], set()
    waiting = [(entry, iter(after[entry]))]
    seen.add(entry)
    while waiting:
        node, rest = waiting[-1]
        for to in rest:
            if to != END and to not in seen:
                seen.add(to)
                waiting.append((to, iter(after[to])))
                break
        else:
            order.append(node)
            waiting.pop()
    order.reverse()
    number = {node: i for i, node in enumerate(order)}
    before: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for to in after[node]:
            if to != END:
                before[to].append(node)
    nearest = {entry: entry}

    def meet(a: int, b: int) -> int:
        while a != b:
            while number[a] > number[b]:
                a = nearest[a]
            while number[b] > number[a]:
                b = nearest[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [one for one in before[node] if one in nearest]
            new = known[0]
            for one in known[1:]:
                new = meet(one, new)
            if nearest.get(node) != new:
                nearest[node], changed = new, True
    found: dict[int, set[int]] = {}
    for node in order:
        found[node] = {node} if node == entry else found[nearest[node]] | {node}
    return found


class _Walk:
    """The walk of :meth:`Flow.path` over the blocks without the jumps back."""

    def __init__(self, flow: Flow, cold: set[int], turning: frozenset[int]) -> None:
        self.flow, self.end, self.cold, self.turning = flow, len(flow.blocks), cold, turning
        self.copying = {block.index for block in flow.blocks if any(one.name == "LDGSTS" for one in block.instructions)}
        headers = {(latch, loop.header): loop for loop in flow.loops for latch in loop.latches}
        self.after: list[tuple[int, ...]] = []
        for block in flow.blocks:
            ways: list[int] = []
            for to in block.after:
                loop = headers.get((block.index, to))
                ways += self._exits(loop) if loop else [self.end if to == END else to]
            self.after.append(tuple(dict.fromkeys(ways)) or (self.end,))
        self.after.append(())
        backwards: list[list[int]] = [[] for _ in self.after]
        for index, ways_on in enumerate(self.after):
            for to in ways_on:
                backwards[to].append(index)
        self.passed_after = _dominators([tuple(one) for one in backwards], self.end)
        self.found: dict[tuple[int, int], frozenset[int]] = {}

    def path(self) -> frozenset[int]:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 20 * self.end + 1000))
        try:
            return self._walk(0, self.end)
        finally:
            sys.setrecursionlimit(limit)

    def _exits(self, loop: Loop) -> list[int]:
        """Blocks outside a loop that it can be left for."""
        outside = {to for index in loop.blocks for to in self.flow.blocks[index].after if to not in loop.blocks}
        return [self.end if to == END else to for to in sorted(outside)] or [self.end]

    def _walk(self, start: int, stop: int) -> frozenset[int]:
        if (start, stop) in self.found:
            return self.found[start, stop]
        self.found[start, stop] = frozenset()  # where ways cross, a walk may come back to its own beginning
        passed: set[int] = set()
        at = start
        while at not in (stop, self.end) and at not in passed:
            passed.add(at)
            ways = self.after[at]
            if len(ways) == 1:
                at = ways[0]
                continue
            meeting = self._meeting(ways)
            sides = [to for to in ways if to != meeting and to not in self.cold]
            guarded = len(sides) < len(ways)
            found = [self._walk(to, meeting) for to in sides or ways if to != meeting]
            if guarded and meeting in ways:
                passed.update(*(found if sides else []))
            else:
                best: frozenset[int] = max(found, key=self._size) if meeting == self.end else self._chosen(found)
                passed |= best
            at = meeting
        self.found[start, stop] = frozenset(passed)
        return self.found[start, stop]

    def _chosen(self, sides: list[frozenset[int]]) -> frozenset[int]:
        """One of several ways that meet again."""
        copying = [side for side in sides if side & self.copying]
        turning = [side for side in sides if side & self.turning]
        return min(copying or turning or sides, key=self._size)

    def _meeting(self, ways: Iterable[int]) -> int:
        """First block that all ways on pass."""
        shared = set.intersection(*(self.passed_after.get(to, {self.end}) for to in ways))
        return max(shared, key=lambda one: len(self.passed_after[one]), default=self.end)

    def _size(self, side: frozenset[int]) -> int:
        return sum(len(self.flow.blocks[index].instructions) for index in side)
