"""Shapes of an operator's outputs from those of its inputs, for any kind of size.

A size is an int, or one of TensorRT's expressions while an engine is built; ``Sizes`` has the arithmetic. C++ solves
for the letters too (``Operator::sizes`` in ``kernels/operator.cpp``), since ONNX Runtime and a plan need numbers and
checks where there is no Python, and TensorRT's expressions exist in Python alone; a test compares both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from tightbeam.plugins.schema import Input, Operator, Output
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["Sizes", "largest_shapes", "letters_of", "output_shapes", "shape_of"]

Size = TypeVar("Size")
Term = tuple[int, tuple[str, ...]]
"""A factor and letters: 2 B M."""
Dimension = tuple[Term, ...]
"""A sum of terms: H K + G K + G V."""


class Sizes(Protocol[Size]):
    """Arithmetic of one kind of size."""

    def constant(self, value: int) -> Size: ...
    def add(self, a: Size, b: Size) -> Size: ...
    def subtract(self, a: Size, b: Size) -> Size: ...
    def multiply(self, a: Size, b: Size) -> Size: ...
    def divide(self, a: Size, b: Size) -> Size: ...


def output_shapes(
    operator: Operator, shapes: Mapping[str, Sequence[Size]], given: Mapping[str, Size], sizes: Sizes[Size]
) -> dict[str, list[Size]]:
    """Find the shape of every output.

    Parameters
    ----------
    operator
        The operator with its table.
    shapes
        Shapes of the inputs that a node has, by name.
    given
        Sizes that scalars give, by letter.
    sizes
        Arithmetic of this kind of size.

    Raises
    ------
    TensorRTError
        A rank differs from the table's, or a size does not follow from the inputs.
    """
    known: list[tuple[Dimension, Size]] = []
    for entry in operator.inputs:
        if entry.name not in shapes or entry.scalar:
            continue
        dimensions, shape = _parse(entry.shape), shapes[entry.name]
        if len(shape) != len(dimensions):
            raise TensorRTError(
                f"{operator.name}: {entry.name} has {len(shape)} dimensions, expected [{entry.shape}]; "
                "export the model again"
            )
        known += zip(dimensions, shape, strict=True)
    letters = _solve(known, dict(given), sizes)
    as_written = {dimension: size for dimension, size in reversed(known)}

    def size_of(entry: Output, dimension: Dimension) -> Size:
        if dimension in as_written:
            return as_written[dimension]
        missing = sorted(_letters(dimension) - letters.keys())
        if missing:
            raise TensorRTError(f"{operator.name}: no input gives {', '.join(missing)} of {entry.name} [{entry.shape}]")
        return _evaluate(dimension, letters, sizes)

    return {entry.name: [size_of(entry, dimension) for dimension in _parse(entry.shape)] for entry in operator.outputs}


class _Integers:
    def constant(self, value: int) -> int:
        return value

    def add(self, a: int, b: int) -> int:
        return a + b

    def subtract(self, a: int, b: int) -> int:
        return a - b

    def multiply(self, a: int, b: int) -> int:
        return a * b

    def divide(self, a: int, b: int) -> int:
        return a // b if b else 0


def letters_of(operator: Operator, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the letters that follow from shapes of inputs and outputs by name, which may contradict one another."""
    known: list[tuple[Dimension, int]] = []
    tensors = [(entry.name, entry.shape) for entry in operator.inputs]
    tensors += [(entry.name, entry.shape) for entry in operator.outputs]
    for name, shape in tensors:
        if name in shapes:
            known += zip(_parse(shape), shapes[name], strict=False)
    return _solve(known, {}, _Integers())


def shape_of(entry: Input | Output, letters: Mapping[str, int]) -> tuple[int, ...]:
    """Return a tensor's shape. Raises KeyError for a letter without a size."""
    return tuple(_evaluate(dimension, letters, _Integers()) for dimension in _parse(entry.shape))


def largest_shapes(operator: Operator, most: Mapping[str, Sequence[int]]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Find the largest shapes that a call can have whose dimensions have limits of their own.

    Limits contradict one another where a product has a lower one than its factors together: the rows B M of a search
    head that takes groups of beams, of which there are more than samples where they have fewer beams.

    Parameters
    ----------
    operator
        The operator with its table.
    most
        The largest size of each dimension, by the names of inputs and outputs.

    Yields
    ------
    dict
        Shapes by name: ``most`` where it is a call's, else those for each size of the second factor.
    """
    letters = letters_of(operator, most)
    entries: list[Input | Output] = [*operator.inputs, *operator.outputs]
    there = [entry for entry in entries if entry.name in most]
    products = [
        (dimension[0][1], size)
        for entry in there
        for dimension, size in zip(_parse(entry.shape), most[entry.name], strict=False)
        if len(dimension) == 1 and len(dimension[0][1]) == 2 and _evaluate(dimension, letters, _Integers()) > size
    ]
    if not products:
        yield {name: tuple(shape) for name, shape in most.items()}
        return
    ((first, second), size), *_ = products
    for count in range(1, letters[second] + 1):
        own = letters | {first: min(letters[first], size // count), second: count}
        yield {entry.name: shape_of(entry, own) for entry in there}


@functools.cache
def _parse(shape: str) -> list[Dimension]:
    """The dimensions of a shape such as "B M, H K + G K + G V"."""
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
