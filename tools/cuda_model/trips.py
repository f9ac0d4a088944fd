"""Trip counts of a kernel's loops: the header of each loop's `for` in the sources, evaluated for a planned launch.

A machine loop names its source line (``-lineinfo``). Its bounds are evaluated with the kernel's parameters, its
template values, the constants of the sources, and what the shape of the call gives (``rules.names_of``). For the first
thread of a block: ``threadIdx.x``, ``lane`` and ``warp`` are 0.
"""

from __future__ import annotations

import ast
import linecache
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tools.cuda_model.costs import kind_of
from tools.cuda_model.flow import Block, Flow, Loop
from tools.cuda_model.sass import Instruction, Place

__all__ = ["Names", "Trips", "evaluate", "header_trips", "trips_of"]

FIRST_THREAD = {"thread": 0, "lane": 0, "lane_": 0, "warp": 0, "warp_": 0, "part": 0, "group": 0, "WARP": 32}
FOR = re.compile(r"for \((?:const )?(?:int|unsigned|long long|auto) (\w+) = (.*?)(?:, \w+ = .*?)?; (.*?); (.*)$")
CHOICE = re.compile(r"\(([^()?:]+)\?([^()?:]+):([^()?:]+)\)")
WHOLE_CHOICE = re.compile(r"^([^?:]+)\?([^?:]+):([^?:]+)$")
HEADERS = ("for (", "while (")
LIMIT = 6
"""Depth to which a name is looked up in the sources."""
MOST_TURNS = 64
"""Most trips of a source that one turn of a machine loop makes."""
UNROLLED = 1.5
"""Loops of one source line whose sizes differ by more make different numbers of trips a turn."""


@dataclass
class Names:
    """Names -> numbers. ``text``: sources that hold the definitions of others."""

    known: dict[str, float]
    text: str
    found: dict[str, float | None] = field(default_factory=dict)

    def look_up(self, name: str, depth: int = 0) -> float | None:
        """Number of a name; None where nothing says it."""
        if name in self.known:
            return self.known[name]
        if name in FIRST_THREAD:
            return FIRST_THREAD[name]
        if name not in self.found and depth < LIMIT:
            self.found[name] = None
            for definition in re.findall(rf"\b{name} = ([^;{{}}]+?)(?:;|, \w+ = )", self.text):
                if (value := evaluate(definition, self, depth + 1)) is not None:
                    self.found[name] = value
                    break
        return self.found.get(name)


def evaluate(expression: str, names: Names, depth: int = 0) -> float | None:
    """Value of an arithmetic expression in C++; None where it holds more than that, or an unknown name."""
    text = re.sub(r"static_cast<[^<>]*>|std::|(?<=\d)[uUlL]+\b", "", expression)
    text = re.sub(r"(threadIdx|blockIdx)\.[xyz]", "0", text)
    text = re.sub(r"gridDim\.([xyz])", r"grid_\1", text.replace("blockDim.x", "block"))
    text = re.sub(r"Pack<\w+>::size|sizeof\(\w+\)", lambda found: "NUMBERS" if "::" in found[0] else "2", text)
    text = re.sub(r"\w+::(\w+)", r"\1", re.sub(r"\b\w+(?:\.|->)(\w+)\b(?!\()", r"\1", text))
    text = text.replace("/", "//").replace("&&", " and ").replace("||", " or ").strip()
    while chosen := CHOICE.search(text) or WHOLE_CHOICE.search(text):
        text = f"{text[: chosen.start()]}(({chosen[2]}) if ({chosen[1]}) else ({chosen[3]})){text[chosen.end() :]}"
    try:
        tree = ast.parse(re.sub(r"!(?!=)", " not ", text).strip(), mode="eval")
        value = _value(tree.body, names, depth)
    except (SyntaxError, _Unknown, ZeroDivisionError):
        return None
    return value


class _Unknown(Exception):
    """An expression holds a name or a form without a value."""


OPERATIONS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min,
    "smaller": min,
    "max": max,
    "larger": max,
    "ceil_div": lambda a, b: -(-a // b),
}


def _value(node: ast.expr, names: Names, depth: int) -> float:
    """Raises _Unknown."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if (found := names.look_up(name, depth)) is not None:
            return found
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names, depth)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names, depth)
        case ast.BinOp(left=left, op=kind, right=right) | ast.Compare(left=left, ops=[kind], comparators=[right]) if (
            type(kind) in OPERATIONS
        ):
            return OPERATIONS[type(kind)](_value(left, names, depth), _value(right, names, depth))
        case ast.BoolOp(op=kind, values=values):
            found_all = [bool(_value(one, names, depth)) for one in values]
            return all(found_all) if isinstance(kind, ast.And) else any(found_all)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, names, depth) else other, names, depth)
        case ast.Call(func=ast.Name(id=name), args=given) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(one, names, depth) for one in given))
    raise _Unknown


def header_trips(line: str, names: Names) -> float | None:
    """Trip count of the `for` in a source line; None where there is none, or it cannot be evaluated."""
    found = FOR.search(line)
    if found is None:
        return None
    name, start_text, condition, step_text = found[1], found[2], found[3], found[4]
    compared = re.search(rf"\b{name} (<=|<|>) (.*?)(?: && .*)?$", condition)
    start = evaluate(start_text, names)
    bound = evaluate(compared[2], names) if compared else None
    if compared is None or start is None or bound is None:
        return None
    if scaled := re.match(rf"{name} (/=|\*=) (\d+)", step_text):
        low, high = (bound, start) if scaled[1] == "/=" else (start, bound)
        if high <= 0:
            return 0.0
        return math.floor(math.log2(high / max(low, 0.5)) / math.log2(int(scaled[2])) + (scaled[1] == "/=") * 1e-9)
    by: float | None = 1.0
    if stepped := re.match(rf"{name} \+= (.*?)(?:, .*)?\)", step_text + ")"):
        text = stepped[1]
        by = evaluate(text if text.count("(") == text.count(")") else text.rstrip(")"), names)
    if not by:
        return None
    distance = bound - start + (compared[1] == "<=")
    return max(0.0, math.ceil(distance / by))


@dataclass(frozen=True)
class Trips:
    """``counts``: of each loop, in the flow's order; ``unknown``: source lines of loops that are counted once, by the
    loop's place in it."""

    counts: tuple[float, ...]
    unknown: dict[int, str]


def trips_of(flow: Flow, names: Names, rules: Mapping[str, str]) -> Trips:
    """Trip counts of all loops.

    Parameters
    ----------
    flow
        Blocks and loops of the kernel.
    names
        Numbers of the launch.
    rules
        Pattern of a loop's source line, with those that it is inlined at behind it ("line <- line"), -> expression,
        for loops whose bounds lie in data.
    """
    found = [_loop_count(flow.blocks, loop, names, rules) for loop in flow.loops]
    unknown = {i: line for i, (line, count, _) in enumerate(found) if count is None}
    groups: dict[tuple[str, int, tuple[Place, ...]], list[int]] = {}
    for i, loop in enumerate(flow.loops):
        places = flow.blocks[loop.latches[0]].instructions[-1].places
        groups.setdefault((found[i][0], id(loop.parent), places), []).append(i)
    counts = [1.0 if count is None else count for _, count, _ in found]
    for members in groups.values():
        _share_out(flow, members, [found[i][2] for i in members], counts)
    return Trips(tuple(counts), unknown)


def _loop_count(
    blocks: list[Block], loop: Loop, names: Names, rules: Mapping[str, str]
) -> tuple[str, float | None, int]:
    """Source line of a loop, its trips in the source, and how many of them one turn makes. The jump back stands in the
    line of the `for`, mostly."""
    jumps = [blocks[latch].instructions[-1] for latch in loop.latches]
    if not any(line.startswith(HEADERS) for jump in jumps for line in jump.lines()):
        jumps += [instruction for instruction in blocks[loop.header].instructions if instruction.name == "ISETP"]
    chains = [" <- ".join(jump.lines()) for jump in jumps]
    lines = dict.fromkeys(line for jump in jumps for line in jump.lines())
    turns = _turns([one for index in loop.blocks for one in blocks[index].instructions], jumps[0].places[:1])
    for chain in chains:
        for pattern, expression in rules.items():
            if re.search(pattern, chain):
                return chain.partition(" <- ")[0], evaluate(expression, names), turns
    headers = [line for line in lines if line.startswith(HEADERS)]
    for line in headers:
        if (count := header_trips(line, names)) is not None:
            return line, count, turns
    return next(iter([*headers, *lines]), "?"), None, turns


def _turns(code: list[Instruction], places: tuple[Place, ...]) -> int:
    """Trips of the source that one turn of a loop makes: what its counter grows by, where the source adds 1."""
    if not places or not re.search(r"\+\+\w+", linecache.getline(*places[0])):
        return 1
    grown = [1]
    for one in code:
        by = re.match(r"(U?R\d+), (?:U?PT, U?PT, )?\1(?:\.reuse)?, (0x[0-9a-f]+)\b", one.operands)
        if by and one.places[:1] == places and one.name in ("IADD3", "VIADD", "UIADD3", "IADD"):
            grown.append(int(by[2], 16))
    return max(by for by in grown if by <= MOST_TURNS)


def _accesses(flow: Flow, loop: Loop) -> int:
    """Memory instructions of a loop, of which a loop that was unrolled has more."""
    code = [one for index in loop.blocks for one in flow.blocks[index].instructions]
    return sum(kind_of(one) in ("shared", "global", "async") for one in code)


def _share_out(flow: Flow, members: list[int], turns: list[int], counts: list[float]) -> None:
    """Set the counts of the loops that the compiler made of one loop of a source: a long one that makes several trips
    a turn, and a short one for the rest, which is taken to make none."""
    if max(turns) == 1:
        sizes = [_accesses(flow, flow.loops[i]) for i in members]
        turns = [max(1, round(size / max(1, min(sizes)))) for size in sizes]
    fitting = [turn for turn, i in zip(turns, members, strict=True) if turn <= counts[i]]
    most = max(fitting, default=0)
    for turn, i in zip(turns, members, strict=True):
        counts[i] = counts[i] // turn if turn <= most < UNROLLED * turn else 0.0
