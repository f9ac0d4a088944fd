"""What an operator is: its inputs and outputs by name, and the function body in ONNX's text form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Operator"]

Present = frozenset[str]


@dataclass(frozen=True)
class Operator:
    """``inputs`` and ``outputs`` in order; those that may be missing stand in ``optional`` too.

    ``body``: from the names of the inputs and outputs that a node has to the statements of its function. A function of
    ONNX has no conditions on what is missing, so each combination has a body of its own. ``float32``: the inputs and
    outputs that are float32 whatever float type a node runs in. ``sizes``: the inputs whose value is a size of an
    output. Both stand in its ``operator.h`` too.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: Callable[[Present], str]
    optional: Present = frozenset()
    float32: Present = frozenset()
    sizes: Present = frozenset()
    attributes: tuple[str, ...] = ()

    def text(self, present: Present) -> str:
        """The function in ONNX's text form. Raises ValueError where a required input or output is missing."""
        names = frozenset(self.inputs + self.outputs)
        missing = names - self.optional - present
        if missing or not present <= names:
            raise ValueError(f"{self.name}: has {sorted(present)}, expected {sorted(names - self.optional)} at least")
        attributes = f"<{', '.join(self.attributes)}> " if self.attributes else ""
        inputs, outputs = ", ".join(self.inputs), ", ".join(name for name in self.outputs if name in present)
        return f"{self.name} {attributes}({inputs}) => ({outputs}) {{\n{self.body(present)}}}\n"
