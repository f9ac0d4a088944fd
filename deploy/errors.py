"""Errors of deploy, each with a one-line message: what was wrong, what was expected, the fix.

ValueError
  CallerError                something that the caller gave
    InputError               an input that cannot be run
    GenerationError          a setting that is unknown, not supported, or impossible
  BundleError                a bundle, its files, or what runs it
    EngineFileError          a TensorRT engine file is missing, damaged, or built for something else
    RuntimeSetupError        a runtime, or a library that it needs, is missing or cannot be loaded
    DeviceError              there is no GPU, its memory is exhausted, or a CUDA call failed
    ExecutionError           a runtime failed to run a graph of the bundle
      NonFiniteError         the model's scores are NaN or infinite

UserWarning
  NoEffectWarning            a setting that is accepted and changes nothing
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Self, TypeAlias

__all__ = [
    "JSON",
    "NO_NAME",
    "PYTHON",
    "BundleError",
    "CallerError",
    "Constant",
    "DeviceError",
    "EngineFileError",
    "ExecutionError",
    "Fix",
    "FrontEnd",
    "GenerationError",
    "InputError",
    "NoEffectWarning",
    "NonFiniteError",
    "PerFrontEnd",
    "RuntimeSetupError",
    "Setting",
    "first_line",
    "is_panic",
    "message_for",
    "open_fault",
    "place_of",
    "short_repr",
]

LONGEST_NAME, LONGEST_PROBLEM = 100, 4000
"""Characters of a setting's name, and of what is wrong, in a message. Longer ones lose their middle."""
MOST_BITS = 1 << 13
"""Bits of an integer whose digits a message quotes; Python itself refuses to write more than 4,300 digits."""
NO_NAME = "no file is named"
"""Fault of an empty name of a file."""


@dataclass(frozen=True)
class Setting:
    """A setting with a value, in the fix of an error: ``num_beams=4`` in Python."""

    name: str
    value: Any


@dataclass(frozen=True)
class Constant:
    """A value of a setting, in the fix of an error: ``True`` in Python, ``true`` in JSON."""

    value: Any


@dataclass(frozen=True)
class PerFrontEnd:
    """Words of a fix that differ between the front ends."""

    python: str
    command_line: str
    json: str


Part: TypeAlias = Setting | Constant | PerFrontEnd


@dataclass(frozen=True)
class FrontEnd:
    """A place where a caller gives settings, and how they are written there.

    Attributes
    ----------
    name : "python", "command line" or "json"
        JSON is the form of a line's or a request's settings.
    options : collection of str
        The settings that are options of the command line; others are written as in Python.
    """

    name: Literal["python", "command line", "json"]
    options: Collection[str] = ()

    def write(self, part: Part) -> str:
        """Write a part of a fix."""
        if isinstance(part, PerFrontEnd):
            return {"python": part.python, "command line": part.command_line, "json": part.json}[self.name]
        if isinstance(part, Constant):
            return json.dumps(part.value) if self.name == "json" else repr(part.value)
        if self.name == "json":
            return f'"{part.name}": {json.dumps(part.value)}'
        if part.name not in self.options:
            return f"{part.name}={part.value!r}"
        option = part.name.replace("_", "-")
        if isinstance(part.value, bool):
            return f"--{option}" if part.value else f"--no-{option}"
        several = isinstance(part.value, list | tuple)
        return f"--{option} {','.join(map(str, part.value)) if several else part.value}"


PYTHON, JSON = FrontEnd("python"), FrontEnd("json")


class Fix:
    """The fix of an error: a text with ``{}`` in the place of each part that a front end writes.

    Examples
    --------
    >>> fix = Fix("pass {}, or leave it out", Setting("do_sample", True))
    >>> fix.written_for(PYTHON), fix.written_for(JSON)
    ('pass do_sample=True, or leave it out', 'pass "do_sample": true, or leave it out')
    """

    def __init__(self, text: str, *parts: Part) -> None:
        self.text, self.parts = text, parts

    def written_for(self, front_end: FrontEnd) -> str:
        """Write the fix for a front end."""
        return self.text.format(*map(front_end.write, self.parts))

    def after(self, words: str) -> Fix:
        """Return this fix with words before it."""
        return Fix(words.replace("{", "{{").replace("}", "}}") + self.text, *self.parts)


class CallerError(ValueError):
    """An error in what a caller gave. Its text is that for Python; `message_for` writes it for any front end.

    Parameters
    ----------
    problem : str
        What is wrong: the whole message without a ``field``, else what follows the field, its value and source. By
        default the field "is not" what was expected.
    field : str
        The setting that is wrong; empty for none.
    value : object
        Its value.
    source : str
        The place that the value is from, such as "the call"; empty if it is unknown.
    expected : str
        The values that the setting may have, such as "an integer of at least 1".
    fix : Fix or str
        What the caller can do; a str is the same for every front end. Empty if ``problem`` holds it.
    """

    def __init__(
        self,
        problem: str = "",
        *,
        field: str = "",
        value: object = None,
        source: str = "",
        expected: str = "",
        fix: Fix | str = "",
    ) -> None:
        self.problem = _clipped(problem or f"is not {expected}", LONGEST_PROBLEM)
        self.field, self.value, self.source = _clipped(field, LONGEST_NAME), value, source
        self.expected, self.fix, self.place = expected, fix, ""
        super().__init__(self.written_for(PYTHON))

    def written_for(self, front_end: FrontEnd) -> str:
        """Write the message, with its fix as this front end takes it."""
        source = f" (from {self.source})" if self.source else ""
        subject = f"{self.field}={short_repr(self.value)}{source} " if self.field else ""
        fix = self.fix.written_for(front_end) if isinstance(self.fix, Fix) else self.fix
        return f"{self.place}{subject}{self.problem}{f'; {fix}' if fix else ''}"

    def at(self, place: str) -> Self:
        """Return the same error with its place before the message, such as "row 1"."""
        own = {name: getattr(self, name) for name in ("field", "value", "source", "expected", "fix")}
        moved = type(self)(self.problem, **own)
        moved.place = f"{place}: {self.place}"
        moved.args = (moved.written_for(PYTHON),)
        return moved


class _ShortRepr(reprlib.Repr):
    """Python's own, which sorts a whole dict or set before it takes a few, and writes bytes and integers whole."""

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        few = dict(islice(x.items(), self.maxdict))
        return "{...}" if level <= 0 and x else super().repr_dict(few, level)[:-1] + ", ..." * (len(few) < len(x)) + "}"

    def repr_set(self, x: set[Any], level: int) -> str:
        return f"set({self.repr1(list(islice(x, self.maxset + 1)), level)})"

    def repr_frozenset(self, x: frozenset[Any], level: int) -> str:
        return f"frozenset({self.repr1(list(islice(x, self.maxset + 1)), level)})"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= self.maxother else f"{x[: self.maxother]!r}..."

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= MOST_BITS else f"<integer of {x.bit_length():,} bits>"


_SHORT = _ShortRepr()


def short_repr(value: object) -> str:
    """Return Python's form of a value in one line of about a hundred characters, however large the value is."""
    return " ".join(map(str.strip, _SHORT.repr(value).splitlines()))


def place_of(path: Iterable[int | str]) -> str:
    """Return a place in JSON, such as ``layers.0.source``; keys other than identifiers are quoted."""
    return ".".join(str(part) if isinstance(part, int) or part.isidentifier() else short_repr(part) for part in path)


def _clipped(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters: a longer one without its middle."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


class InputError(CallerError):
    """An input that cannot be run."""


class GenerationError(CallerError):
    """A setting that is unknown, not supported, or impossible."""


def message_for(front_end: FrontEnd, error: Exception) -> str:
    """Return the message of an error as a front end shows it."""
    return error.written_for(front_end) if isinstance(error, CallerError) else str(error)


class NoEffectWarning(UserWarning):
    """Warning of a setting of the caller that is accepted and changes nothing."""


class BundleError(ValueError):
    """Bundle that cannot be read, written or run. The message names the file, what was expected, and the fix."""


class EngineFileError(BundleError):
    """TensorRT engine that cannot be read or does not fit. The message ends with the command that builds one."""


class RuntimeSetupError(BundleError):
    """Missing or unloadable runtime, or library that it needs."""


class DeviceError(BundleError):
    """Failure of the GPU: there is none, its memory is exhausted, or a CUDA call failed."""


class ExecutionError(BundleError):
    """Failure of a runtime while it runs a graph of the bundle."""


class NonFiniteError(ExecutionError):
    """Scores of the model that are NaN or infinite."""

    def __init__(self, scores: str) -> None:
        super().__init__(
            f"{scores}: the model's weights hold NaN or infinity, or its activations overflow; export a "
            "checkpoint with finite weights, or at a higher precision"
        )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its class for an empty message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def open_fault(name: str, error: Exception) -> str:
    """Name what keeps a file from being opened: it does not exist, it is a folder, or the system's reason."""
    if isinstance(error, FileNotFoundError):
        return f"there is no file {name}"
    if isinstance(error, IsADirectoryError):
        return f"{name} is a folder"
    return f"{name} cannot be opened ({getattr(error, 'strerror', None) or error})"


def is_panic(error: BaseException) -> bool:
    """True for a panic inside a Rust library, a BaseException; pyo3 has no module to import its class from."""
    return type(error).__name__ == "PanicException"
