"""The shapes of an operator's outputs, from the shapes of its inputs, for any kind of size.

A size is an int, or one of TensorRT's expressions while an engine is built; ``Sizes`` has its arithmetic. C++ solves
for the letters too (``Operator::sizes`` in ``kernels/operator.cpp``), since ONNX Runtime and the plans run without
Python. TensorRT's expressions exist only in Python. A test compares both.
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
"""A factor and letters, such as 2 B M."""
Dimension = tuple[Term, ...]
"""A sum of terms, such as H K + G K + G V."""


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
        The operator.
    shapes
        Shapes of the inputs that the node has, by name.
    given
        Sizes that are values of scalar inputs, by letter.
    sizes
        Arithmetic of this kind of size.

    Returns
    -------
    dict
        Shapes of all outputs, by name.

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
    """Find the sizes of letters.

    Parameters
    ----------
    operator
        The operator.
    shapes
        Shapes of inputs and outputs by name. They may contradict one another: the first of them decides.

    Returns
    -------
    dict
        The size of every letter that follows from the shapes.
    """
    known: list[tuple[Dimension, int]] = []
    tensors = [(entry.name, entry.shape) for entry in operator.inputs]
    tensors += [(entry.name, entry.shape) for entry in operator.outputs]
    for name, shape in tensors:
        if name in shapes:
            known += zip(_parse(shape), shapes[name], strict=False)
    return _solve(known, {}, _Integers())


def shape_of(entry: Input | Output, letters: Mapping[str, int]) -> tuple[int, ...]:
    """Evaluate the shape of a tensor.

    Parameters
    ----------
    entry
        The tensor's entry in its table.
    letters
        Size of each letter.

    Returns
    -------
    tuple of int
        The shape.

    Raises
    ------
    KeyError
        A letter has no size.
    """
    return tuple(_evaluate(dimension, letters, _Integers()) for dimension in _parse(entry.shape))


def largest_shapes(operator: Operator, most: Mapping[str, Sequence[int]]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Find the largest shapes that a call can have if each of its dimensions has a limit of its own.

    The limits contradict one another if a product's limit is lower than the product of its factors' limits. A search
    head with groups of beams has an example, its rows B M: a batch has many groups of few beams, or few groups of many.

    Parameters
    ----------
    operator
        The operator.
    most
        The limits: for each input and output by name, the largest size of each dimension.

    Yields
    ------
    dict
        Shapes by name. These are the limits if they agree, else the largest shapes for each size of the second factor.
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
    """Parse a shape such as "B M, H K + G K + G V" into its dimensions."""
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
    """Add the letters that follow: each is the only unknown of a dimension, which is linear in it. C++ has the same in
    Operator::solve."""
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
