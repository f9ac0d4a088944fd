"""Schema of an operator: names, types, shapes and attributes, and its function body in ONNX's text form.

The declarations in ``ops/<op>/__init__.py`` are the only ones: the TensorRT plugins read them, and the C++ tables are
generated from them when the native libraries are built (``cmake/generate_operators.py``).

A shape is written by the letters of docs/design.md, its dimensions separated by commas. A dimension is a letter or a
name, a number, a product (``B M``, ``H K``) or a sum of products (``H K + G K + G V``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["FLOAT", "TYPES", "Attribute", "Input", "Operator", "Output", "fingerprint"]

Present = frozenset[str]

FLOAT = "Float"
"""The float type that a node runs in: float32, float16 or bfloat16."""
TYPES = (FLOAT, "float32", "int8", "uint8", "int32", "int64", "bool")
"""Types of tensors; all but ``FLOAT`` as numpy calls them."""


@dataclass(frozen=True)
class Input:
    """An input of an operator.

    Attributes
    ----------
    name, type, shape
        The type is one of ``TYPES``.
    meaning
        For readers.
    optional
        True where a node may lack it.
    scalar
        One number, of shape [] or [1], which stays in CPU memory under every provider of ONNX Runtime.
    gives, at_most
        For a scalar int64, the letter whose size its value is, and the letter that bounds it.
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
        Like the attributes of :class:`Input`.
    reuses
        The input whose memory it may be given; the kernels serve both ways.
    updates
        The input of which it is the updated version: written in place where both share memory, else copied first.
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
        For readers.
    default
        Its value where a node lacks it; None: it is required.
    switch
        True where a node that has it has another function body than one that lacks it.
    """

    name: str
    type: str
    meaning: str = field(repr=False)
    default: float | None = None
    switch: bool = False

    @property
    def text(self) -> str:
        """The attribute in the header of an ONNX function."""
        return self.name if self.default is None else f"{self.name}: {self.type} = {self.default}"


@dataclass(frozen=True)
class Operator:
    """An operator: its table and its function body.

    Attributes
    ----------
    name
        Name of the operator in domain ``tightbeam``.
    folder
        Folder below ``plugins/ops``.
    inputs, outputs, attributes
        In the order of a node.
    body
        Statements of its ONNX function for the inputs, outputs and switches that a node has. A function of ONNX has no
        conditions on what is missing, so each combination has a body of its own.
    may_be_zero
        Letters whose size may be 0; any other size is at least 1.
    gpu
        False where it has CPU kernels alone: no CUDA kernel and no TensorRT plugin is made.
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
        """Names of the inputs and outputs that a node may lack."""
        return frozenset(entry.name for entry in self.tensors if entry.optional)

    @property
    def float32(self) -> Present:
        """Names of the inputs and outputs that are float32 whatever float type a node runs in."""
        return frozenset(entry.name for entry in self.tensors if entry.type == "float32")

    @property
    def switches(self) -> Present:
        """Names of the attributes that change the function body."""
        return frozenset(attribute.name for attribute in self.attributes if attribute.switch)

    @property
    def sizes(self) -> Present:
        """Names of the inputs whose value is a size of an output."""
        return frozenset(entry.name for entry in self.inputs if entry.gives is not None)

    def text(self, present: Present) -> str:
        """Write the function in ONNX's text form.

        Parameters
        ----------
        present
            Names of the inputs, outputs and switches that a node has.

        Raises
        ------
        ValueError
            A required input or output is missing, or there is no input, output or switch of some name.
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
    """SHA-256 of the operators' tables, by which a library and this package see that they have the same ones."""
    return hashlib.sha256(repr(tuple(operators)).encode()).hexdigest()
