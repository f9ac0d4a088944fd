"""Tables of the reference pages that are made from the code.

A table is between two lines: ``<!-- made from the code: command export-model -->``, and ``<!-- made until here -->``.
``make reference`` writes what is between them. ``make docs`` and the tests refuse a table that is not what the code
makes.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from tightbeam.__main__ import COMMANDS
from tightbeam.deploy.generation import fields
from tightbeam.deploy.serving.dispatch import metrics
from tightbeam.export.option import settings_of
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.schema import FLOAT
from tools.docs.pages import ROOT

__all__ = ["END", "MARKER", "command_names", "pages_with_tables", "table", "with_tables"]

END = "<!-- made until here -->"
MARKER = re.compile(
    rf"^(<!-- made from the code: ([a-z-]+)(?: (.+?))? -->)$(?:\n\n(?:(?!<!-- made).*\n)*?{END}$)?", re.MULTILINE
)


def with_tables(markdown: str) -> str:
    """Make each table of a page anew, behind its marker.

    Raises
    ------
    KeyError
        There is no table of that kind, or nothing of that name.
    """
    return MARKER.sub(lambda match: f"{match[1]}\n\n{table(match[2], match[3] or '')}\n\n{END}", markdown)


def pages_with_tables() -> Mapping[Path, str]:
    """The pages of docs/ that have tables, and the text of each as the code makes it."""
    pages = {path: path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
    return {path: with_tables(text) for path, text in pages.items() if MARKER.search(text)}


def table(kind: str, name: str) -> str:
    """Make one table.

    Raises
    ------
    KeyError
        There is no table of that kind, or nothing of that name.
    """
    return TABLES[kind](name)


def command_names() -> Mapping[str, str]:
    """The commands of the package, and ``module:function`` of each."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts: dict[str, str] = tomllib.load(file)["project"]["scripts"]
    return scripts | {"tightbeam info": f"{COMMANDS['info'].module}:main"}  # the only one without a name of its own


def _command(name: str) -> str:
    """The usage of a command, its description, and tables of its arguments and options."""
    module = command_names()[name].partition(":")[0]
    made: Any = typer.main.get_command(importlib.import_module(module).app)
    context: Any = typer.Context(made)
    usage = " ".join([name, *made.collect_usage_pieces(context)])
    usage = re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), usage)
    description = "\n\n".join(" ".join(part.split()) for part in made.help.split("\n\n"))
    arguments: list[tuple[str, ...]] = []
    options: list[tuple[str, ...]] = []
    for parameter in made.params:
        record = parameter.get_help_record(context)
        if record is None:  # hidden
            continue
        is_argument = parameter.param_type_name == "argument"
        (arguments if is_argument else options).append(_parameter(*record, is_argument=is_argument))
    tables = [
        _table(("argument", "meaning", "value", "default"), arguments),
        _table(("option", "meaning", "value", "default"), options),
    ]
    if name == "tightbeam":
        tables.insert(
            0, _table(("command", "meaning"), [(_code(each), entry.help) for each, entry in COMMANDS.items()])
        )
    return "\n\n".join([f"```text\n{usage}\n```", _escaped(description), *filter(None, tables)])


def _parameter(name: str, help: str, *, is_argument: bool) -> tuple[str, ...]:
    """A row of a command's table, made of the parameter's two columns in ``--help``."""
    other, comma, long = name.partition(", ")
    name, _, value = (long or other).partition(" ")
    if comma and other.startswith("--"):  # both are long: the first is the name
        name, other = other, name
    text, _, facts = help.rpartition("  [") if "  [" in help and help.endswith("]") else (help, "", "")
    default, bounds = "", ""
    for fact in facts.removesuffix("]").split("; "):
        if fact.startswith("default: "):
            default = _code(fact.removeprefix("default: "))
        elif fact == "required":
            default = "required"
        elif fact:
            bounds = ", " + re.sub(r"^(\S+)<=x<=(\S+)$", r"\1 to \2", re.sub(r"^x>=(\S+)$", r"\1 or more", fact))
    value = VALUES.get(value.strip("<>"), value.strip("<>")) + bounds
    if value.startswith("/ "):  # the negative of an option without a value
        value, text = "", f"{text} The opposite is {value.removeprefix('/ ')}."
    meaning = (
        f"{_escaped(text)} {'The same' if other.startswith('--') else 'In short'}: {_code(other)}."
        if comma
        else _escaped(text)
    )
    return _code(name.upper() if is_argument else name), meaning, value, default


VALUES = {
    "str": "text",
    "list[str]": "texts",
    "int": "integer",
    "int range": "integer",
    "float": "number",
    "float range": "number",
}
"""Words for typer's types."""


def _settings(table: str) -> str:
    """The settings of one table of ``deploy/generation/fields.py``."""
    if table == "INERT":
        return ", ".join(_code(name) for name in sorted(fields.INERT) if not name.startswith("_")) + "."
    neutral: Mapping[str, Iterable[object]] = {"DORMANT": fields.DORMANT, "UNSUPPORTED": fields.UNSUPPORTED}[table]
    rows = [(_code(name), ", ".join(map(_value, (None, *neutral[name])))) for name in sorted(neutral)]
    return _table(("setting", "accepted values"), rows)


def _keywords(record: str) -> str:
    """The options of a record, named as keywords of the function that takes them."""
    module, _, name = record.rpartition(".")
    rows = []
    for setting in settings_of(getattr(importlib.import_module(module), name)):
        kind = inspect.formatannotation(setting.type).replace("os.PathLike[str]", "path").replace(" | ", " or ")
        rows.append((_code(setting.name), _escaped(setting.meaning), kind, _value(setting.default)))
    return _table(("keyword", "meaning", "type", "default"), rows)


def _value(value: object) -> str:
    return _code(repr(value))


def _operator(name: str) -> str:
    """The inputs, outputs and attributes of an operator."""
    operator = OPERATORS[name]
    rows = []
    for kind, tensors in (("input", operator.inputs), ("output", operator.outputs)):
        for tensor in tensors:
            shape = (
                f"{'float' if tensor.type == FLOAT else tensor.type} [{'' if tensor.shape == '1' else tensor.shape}]"
            )
            optional = ", optional" if tensor.optional else ""
            rows.append((kind + optional, _code(tensor.name), shape, _escaped(tensor.meaning)))
    for attribute in operator.attributes:
        default = "required" if attribute.default is None else f"default {attribute.default:g}"
        rows.append(("attribute", _code(attribute.name), f"{attribute.type}, {default}", _escaped(attribute.meaning)))
    return _table(("", "name", "type, shape", "meaning"), rows)


def _metrics(_: str) -> str:
    """The metrics that a served model reports."""
    kinds = [(name, "counter", text) for name, text in metrics.COUNTERS.items()]
    kinds += [(name, "gauge", text) for name, text in metrics.GAUGES.items()]
    return _table(("metric", "type", "meaning"), [(_code(name), kind, _escaped(text)) for name, kind, text in kinds])


TABLES: Mapping[str, Callable[[str], str]] = {
    "command": _command,
    "keywords": _keywords,
    "settings": _settings,
    "operator": _operator,
    "metrics": _metrics,
}
"""The maker of each kind of table."""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; empty if there are no rows."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    columns = list(head)
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines]) if lines else ""


def _code(text: str) -> str:
    return f"`{text}`"


def _escaped(text: str) -> str:
    """Text as Markdown that shows it as it is."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
