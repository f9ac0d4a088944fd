"""An operator's table as its ``operator.h`` has it: names, types, and shapes by letters, for any kind of size.

A size is an int, or one of TensorRT's expressions while an engine is built; ``Sizes`` says how to calculate with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["AttributeEntry", "InputEntry", "OutputEntry", "Sizes", "Table"]

Size = TypeVar("Size")
Term = tuple[int, tuple[str, ...]]
"""A factor and letters: 2 B M."""
Dimension = tuple[Term, ...]
"""A sum of terms: H K + G K + G V."""


@dataclass(frozen=True)
class InputEntry:
    """``type``: a type of numpy, or Float, which a node chooses. ``scalar``: one number, of shape [] or [1].
    ``gives``: the letter whose size its value is."""

    name: str
    type: str
    shape: str
    optional: bool
    scalar: bool
    gives: str | None


@dataclass(frozen=True)
class OutputEntry:
    """``updates``: the input that it overwrites in place."""

    name: str
    type: str
    shape: str
    optional: bool
    updates: str | None


@dataclass(frozen=True)
class AttributeEntry:
    """``value``: what it is where a node does not have it; only if it is not ``required``."""

    name: str
    is_int: bool
    required: bool
    value: float
    gives: str | None


class Sizes(Protocol[Size]):
    """Arithmetic of one kind of size."""

    def constant(self, value: int) -> Size: ...
    def add(self, a: Size, b: Size) -> Size: ...
    def subtract(self, a: Size, b: Size) -> Size: ...
    def multiply(self, a: Size, b: Size) -> Size: ...
    def divide(self, a: Size, b: Size) -> Size: ...


@dataclass(frozen=True)
class Table:
    """``folder``: the operator's, in ``plugins/``."""

    name: str
    folder: str
    inputs: tuple[InputEntry, ...]
    outputs: tuple[OutputEntry, ...]
    attributes: tuple[AttributeEntry, ...]

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Table:
        """From what the native library says of it."""
        return cls(
            entry["name"],
            entry["folder"],
            tuple(InputEntry(**fields) for fields in entry["inputs"]),
            tuple(OutputEntry(**fields) for fields in entry["outputs"]),
            tuple(AttributeEntry(**fields) for fields in entry["attributes"]),
        )

    def output_shapes(
        self, shapes: Mapping[str, Sequence[Size]], given: Mapping[str, Size], sizes: Sizes[Size]
    ) -> dict[str, list[Size]]:
        """The shape of every output. ``shapes``: of the inputs that a node has; ``given``: the sizes that scalars and
        attributes give, by letter.

        Raises TensorRTError where a rank differs from the table's, or a size is not known.
        """
        known: list[tuple[Dimension, Size]] = []
        for entry in self.inputs:
            if entry.name not in shapes or entry.scalar:
                continue
            dimensions, shape = _parse(entry.shape), shapes[entry.name]
            if len(shape) != len(dimensions):
                raise TensorRTError(
                    f"{self.name}: {entry.name} has {len(shape)} dimensions, expected [{entry.shape}]; "
                    "export the model again"
                )
            known += zip(dimensions, shape, strict=True)
        letters = _solve(known, dict(given), sizes)
        as_written = {dimension: size for dimension, size in reversed(known)}
        return {
            entry.name: [
                as_written[dimension] if dimension in as_written else self._evaluate(entry, dimension, letters, sizes)
                for dimension in _parse(entry.shape)
            ]
            for entry in self.outputs
        }

    def _evaluate(
        self, entry: OutputEntry, dimension: Dimension, letters: Mapping[str, Size], sizes: Sizes[Size]
    ) -> Size:
        missing = sorted(_letters(dimension) - letters.keys())
        if missing:
            raise TensorRTError(f"{self.name}: no input gives {', '.join(missing)} of {entry.name} [{entry.shape}]")
        return _evaluate(dimension, letters, sizes)


def _parse(shape: str) -> list[Dimension]:
    """A shape as operator.h writes it, "B M, H K + G K + G V"."""
    dimensions = []
    for part in filter(None, map(str.strip, shape.split(","))):
        terms = []
        for words in (term.split() for term in part.split("+")):
            factor = 1
            for word in words:
                factor *= int(word) if word.isdigit() else 1
            terms.append((factor, tuple(word for word in words if not word.isdigit())))
        dimensions.append(tuple(terms))
    return dimensions


def _letters(dimension: Dimension) -> set[str]:
    return {letter for _, letters in dimension for letter in letters}


def _evaluate(dimension: Dimension, letters: Mapping[str, Size], sizes: Sizes[Size]) -> Size:
    total = None
    for factor, product in dimension:
        term = sizes.constant(factor)
        for letter in product:
            term = sizes.multiply(term, letters[letter])
        total = term if total is None else sizes.add(total, term)
    assert total is not None
    return total


def _solve(known: list[tuple[Dimension, Size]], letters: dict[str, Size], sizes: Sizes[Size]) -> dict[str, Size]:
    """Every letter that is the one unknown of some dimension, which is linear in it; as Operator::solve in C++."""
    progress = True
    while progress:
        progress = False
        for dimension, size in known:
            unknown = _letters(dimension) - letters.keys()
            if len(unknown) != 1:
                continue
            (letter,) = unknown
            with_it = tuple(
                (factor, tuple(other for other in product if other != letter))
                for factor, product in dimension
                if letter in product
            )
            rest = tuple(term for term in dimension if letter not in term[1])
            share = sizes.subtract(size, _evaluate(rest, letters, sizes)) if rest else size
            letters[letter] = sizes.divide(share, _evaluate(with_it, letters, sizes))
            progress = True
    return letters
