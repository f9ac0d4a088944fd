"""Options of a command and keywords of a function, both made of the fields of one record.

A record is a frozen dataclass. The annotation of a field that is an option carries an ``Option``, which holds what the
field's name, type and default do not say:

    max_new_tokens: Annotated[int | None, Option("Most new tokens of a run.", check=check_max_new_tokens)] = None

A field that is True by default becomes a flag that turns it off: ``check`` is ``--no-check`` of the command.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from textwrap import fill, indent
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

__all__ = ["Option", "Setting", "check_options", "from_command", "settings_of", "with_keywords", "with_options"]

Function = TypeVar("Function", bound=Callable[..., Any])
Record = TypeVar("Record")
KEYWORDS = re.compile(r"^\*\*\w+\n(?: {4}.*\n)+", re.MULTILINE)
"""The entry of a docstring, without its indentation, that stands for the fields of a record."""


@dataclass(frozen=True)
class Option:
    """The facts that a record states about one of its options."""

    help: str
    """Text of ``--help``, of ``help()`` and of the reference pages; it names other options as the command does."""
    check: Callable[[Any], None] | None = None
    """Raise ExportError if a record's value of this option is wrong, by itself or together with other options."""
    parse: Callable[[str], Any] | None = None
    """Make the value from the command's text: a type that typer knows, such as Path, or a function.

    In the text of a default, commas join the parts of a tuple.
    """
    flag: str = ""
    """Name in the command, if it differs from the field's."""


@dataclass(frozen=True)
class Setting:
    """One option of a record, with its name, type and default."""

    name: str
    type: Any
    default: Any
    option: Option

    @property
    def meaning(self) -> str:
        """The help text for a caller of the function, to whom options are keywords."""
        text = re.sub(r"--no-([a-z]+)", r"\1=False", self.option.help)
        text = re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), text)
        return f"False: {text[0].lower()}{text[1:]}" if self.default is True else text

    @property
    def flag(self) -> str:
        """Name in the command, such as ``--weight-threshold`` or ``--no-check``."""
        name = self.name.replace("_", "-")
        return self.option.flag or (f"--no-{name}" if self.default is True else f"--{name}")

    @property
    def parameter(self) -> inspect.Parameter:
        """Parameter of the command's function, as typer reads it."""
        default = False if self.default is True else self.default
        type_: Any = self.type
        if self.option.parse is not None:
            default = ",".join(default) if isinstance(default, tuple) else default
            type_ = self.option.parse if inspect.isclass(self.option.parse) else str
            type_ = type_ | None if default is None else type_
        name = self.flag.removeprefix("--").replace("-", "_")
        annotation = Annotated[type_, typer.Option(self.flag, help=self.option.help)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    @property
    def keyword(self) -> inspect.Parameter:
        """Parameter of a function that takes the record's fields as keywords."""
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=self.type)

    def value(self, given: Any) -> Any:
        """Return the field's value for what the command was given."""
        if self.default is True:
            return not given
        return given if given is None or self.option.parse is None else self.option.parse(given)


def settings_of(record: type) -> list[Setting]:
    """List the options of a record, in its order: its fields with an ``Option``."""
    hints = get_type_hints(record, include_extras=True)
    found = []
    for field in fields(record):
        if get_origin(hints[field.name]) is Annotated:
            type_, option = get_args(hints[field.name])
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            found.append(Setting(field.name, type_, default, option))
    return found


def check_options(record: Any) -> None:
    """Run each option's own check, in the record's order."""
    for setting in settings_of(type(record)):
        if setting.option.check is not None:
            setting.option.check(record)


def with_options(*records: type) -> Callable[[Function], Function]:
    """Decorate a typer command, whose ``**given`` then stands for the options of records."""

    def decorate(function: Function) -> Function:
        _insert(function, [setting.parameter for record in records for setting in settings_of(record)])
        return function

    return decorate


def from_command(record: type[Record], given: Mapping[str, Any], **others: Any) -> Record:
    """Make a record from what a command ``with_options`` was given, and from its other fields.

    Raises ExportError as the checks of the record do.
    """
    values = {setting.name: setting.value(given[setting.parameter.name]) for setting in settings_of(record)}
    return record(**values, **others)


def with_keywords(record: type) -> Callable[[Function], Function]:
    """Decorate a function, whose ``**options`` then stand for the options of a record in ``help()`` and signature."""

    def decorate(function: Function) -> Function:
        settings = settings_of(record)
        _insert(function, [setting.keyword for setting in settings])
        entries = "".join(f"{setting.name}\n{indent(fill(setting.meaning, 112), '    ')}\n" for setting in settings)
        function.__doc__ = KEYWORDS.sub(lambda _: entries, inspect.getdoc(function) or "")
        return function

    return decorate


def _insert(function: Any, made: Iterable[inspect.Parameter]) -> None:
    """Put keyword-only parameters in the place of a function's ``**`` one, and evaluate the annotations of its own."""
    signature = inspect.signature(function, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    positional = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in own)
    function.__signature__ = signature.replace(parameters=[*own[:positional], *made, *own[positional:]])
