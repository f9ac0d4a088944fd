"""The table of an operator: names, types, shapes and attributes, and its function body in ONNX's text form.

Each operator is declared once, in ``ops/<op>/__init__.py``. The TensorRT plugins read the declaration, and the C++
tables are generated from it when the native libraries are built (``cmake/generate_operators.py``).

A shape is written in the letters of docs/design.md, with commas between its dimensions. A dimension is a letter or a
name, a number, a product (``B M``, ``H K``) or a sum of products (``H K + G K + G V``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["DOMAIN", "FLOAT", "TYPES", "VERSION", "Attribute", "Input", "Operator", "Output", "fingerprint"]

Present = frozenset[str]

DOMAIN = "tightbeam"
VERSION = 3
"""Version of the operators, the domain's opset. A bundle of an older version runs the functions that it carries."""

FLOAT = "Float"
"""The float type that a node runs in: float32, float16 or bfloat16."""
TYPES = (FLOAT, "float32", "int8", "uint8", "int32", "int64", "bool")
"""Types of tensors; all but ``FLOAT`` have their names in numpy."""


@dataclass(frozen=True)
class Input:
    """An input of an operator.

    Attributes
    ----------
    name, shape
        Its name, and its shape in letters.
    type
        One of ``TYPES``.
    meaning
        One line for readers.
    optional
        True if a node may leave it out.
    scalar
        True for one number, of shape [] or [1], which stays in CPU memory under every provider of ONNX Runtime.
    gives, at_most
        Of a scalar int64 whose value is a size: the letter of that size, and the letter whose size bounds it.
    """

    name: str
    type: str
    shape: str
    meaning: str = field(repr=False)
    optional: bool = False
    scalar: bool = False
    gives: str | None = None
    at_most: str | None = None


@dataclass(frozen=True)
class Output:
    """An output of an operator.

    Attributes
    ----------
    name, type, shape, meaning, optional
        As in :class:`Input`.
    reuses
        The input whose memory it may share. The kernels accept shared and separate memory.
    updates
        The input that it is a new version of: written in place if both share memory, else copied first.
    """

    name: str
    type: str
    shape: str
    meaning: str = field(repr=False)
    optional: bool = False
    reuses: str | None = None
    updates: str | None = None


@dataclass(frozen=True)
class Attribute:
    """An attribute of an operator.

    Attributes
    ----------
    name
        Its name.
    type
        ``float`` or ``int``.
    meaning
        One line for readers.
    default
        Its value if a node leaves it out; None if it is required.
    switch
        True if nodes with the attribute and nodes without it have different function bodies.
    """

    name: str
    type: str
    meaning: str = field(repr=False)
    default: float | None = None
    switch: bool = False

    @property
    def text(self) -> str:
        """The attribute as the header of an ONNX function declares it."""
        return self.name if self.default is None else f"{self.name}: {self.type} = {self.default}"


@dataclass(frozen=True)
class Operator:
    """An operator: its table and its function body.

    Attributes
    ----------
    name
        Its name in domain ``tightbeam``.
    folder
        Its folder below ``plugins/ops``.
    inputs, outputs, attributes
        Their entries, in the order of a node.
    body
        Returns the statements of its ONNX function, given the names of the inputs, outputs and switches that a node
        has. A function of ONNX cannot ask whether an input is missing, so each combination has a body of its own.
    may_be_zero
        Letters whose size may be 0. Any other size is at least 1.
    gpu
        False if it has CPU kernels only: no CUDA kernel and no TensorRT plugin is made.
    """

    name: str
    folder: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    body: Callable[[Present], str] = field(repr=False)
    attributes: tuple[Attribute, ...] = ()
    may_be_zero: tuple[str, ...] = ()
    gpu: bool = True

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.outputs)

    @property
    def tensors(self) -> tuple[Input | Output, ...]:
        """Inputs and outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def optional(self) -> Present:
        """Names of the inputs and outputs that a node may leave out."""
        return frozenset(entry.name for entry in self.tensors if entry.optional)

    @property
    def float32(self) -> Present:
        """Names of the inputs and outputs that are float32 in nodes of every float type."""
        return frozenset(entry.name for entry in self.tensors if entry.type == "float32")

    @property
    def switches(self) -> Present:
        """Names of the attributes that change the function body."""
        return frozenset(attribute.name for attribute in self.attributes if attribute.switch)

    @property
    def sizes(self) -> Present:
        """Names of the inputs whose values are sizes of outputs."""
        return frozenset(entry.name for entry in self.inputs if entry.gives is not None)

    def text(self, present: Present) -> str:
        """Write the function in ONNX's text form.

        Parameters
        ----------
        present
            Names of the inputs, outputs and switches that a node has.

        Returns
        -------
        str
            The function: its header and, in braces, its statements.

        Raises
        ------
        ValueError
            A required input or output is missing, or a name is not one of the operator's.
        """
        required = frozenset(self.input_names + self.output_names) - self.optional
        names = required | self.optional | self.switches
        missing = required - present
        if missing or not present <= names:
            raise ValueError(f"{self.name}: has {sorted(present)}, expected {sorted(required)} at least")
        attributes = f"<{', '.join(attribute.text for attribute in self.attributes)}> " if self.attributes else ""
        inputs = ", ".join(self.input_names)
        outputs = ", ".join(name for name in self.output_names if name in present)
        return f"{self.name} {attributes}({inputs}) => ({outputs}) {{\n{self.body(present)}}}\n"


def fingerprint(operators: Iterable[Operator]) -> str:
    """Hash the operators' tables, so that a library and this package can see whether theirs are the same.

    Parameters
    ----------
    operators
        All operators, in their order.

    Returns
    -------
    str
        SHA-256 of the tables without the meanings and the function bodies, in hexadecimal digits.
    """
    return hashlib.sha256(repr(tuple(operators)).encode()).hexdigest()
