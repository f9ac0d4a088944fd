"""The check that what the Python reference page shows is documented: it runs when the site is built.

A page names an object with a line ``::: module.name``. The object and its public members need a docstring whose first
line is a sentence; functions need NumPy's sections: Parameters for every parameter, Returns where they return
something, Raises for what they raise themselves. Sources are read, never imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.docs.pages import ROOT

__all__ = ["DIRECTIVE", "errors_of", "exports", "faults"]

DIRECTIVE = re.compile(r"^::: (tightbeam\.[\w.]+)$", re.MULTILINE)
HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
ENTRY = re.compile(r"^(\**\w+(?:, \**\w+)*)(?: ?:.*)?$", re.MULTILINE)
BARE = re.compile(r"^(\**\w+(?:, \**\w+)*) ?:.*\n(?! )", re.MULTILINE)
"""An entry without an indented text under it."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def faults(page: str, root: Path = ROOT) -> list[str]:
    """Find what is not documented among the objects of a page.

    Parameters
    ----------
    page : str
        The text of the page.
    root : path
        Folder of the packages' folders.

    Returns
    -------
    list of str
        One line each: the object, and what it lacks.
    """
    found = []
    for name in DIRECTIVE.findall(page):
        module, _, member = name.rpartition(".")
        node = find(module, member, root)
        found += [f"{name} does not exist"] if node is None else list(errors_of(node, name))
    return found


def exports(package: str, root: Path = ROOT) -> tuple[str, ...]:
    """Read ``__all__`` of a package."""
    for node in _tree(package, root).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def find(module: str, name: str, root: Path = ROOT) -> ast.ClassDef | Function | None:
    """Find a class or a function where it is defined, through the imports of ``module``; None where there is none."""
    for node in ast.walk(_tree(module, root)):
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and name in (alias.name for alias in node.names):
            return find(node.module, name, root)
    return None


def errors_of(node: ast.ClassDef | Function, name: str) -> Iterator[str]:
    """Faults of a class and its public members, or of a function; ``name`` is how the lines call it."""
    text = ast.get_docstring(node) or ""
    if not text.partition("\n")[0].endswith((".", "::")):
        yield f"{name} has no docstring that begins with a sentence of one line"
        return
    sections = _sections(text)
    for heading in ("Parameters", "Attributes"):
        for entry in BARE.findall(f"{sections.get(heading, '').strip()}\n"):
            yield f"{name} names {entry} and does not say what it is"
    if isinstance(node, ast.ClassDef):
        yield from _class_errors(node, name, sections)
    elif not _is_property(node):
        yield from _function_errors(node, name, sections)


def _class_errors(node: ast.ClassDef, name: str, sections: Mapping[str, str]) -> Iterator[str]:
    described = _names(sections, "Parameters") | _names(sections, "Attributes")
    for place, member in enumerate(node.body):
        follower = node.body[place + 1] if place + 1 < len(node.body) else None
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            field = member.target.id
            if not (field.startswith("_") or field in described or _is_text(follower)):
                yield f"{name} does not describe its field {field}"
        elif isinstance(member, Function) and member.name == "__init__":
            for parameter in _parameters(member):
                if parameter not in described:
                    yield f"{name} does not describe its parameter {parameter}"
        elif isinstance(member, Function) and not member.name.startswith("_"):
            yield from errors_of(member, f"{name}.{member.name}")


def _function_errors(node: Function, name: str, sections: Mapping[str, str]) -> Iterator[str]:
    described, there = _names(sections, "Parameters"), set(_parameters(node))
    for parameter in sorted(there - described):
        yield f"{name} does not describe its parameter {parameter}"
    for parameter in sorted(described - there):
        yield f"{name} describes {parameter}, which is no parameter"
    returns = ast.unparse(node.returns) if node.returns else "None"
    if returns not in ("None", "NoReturn") and not sections.keys() & {"Returns", "Yields"}:
        yield f"{name} returns {returns} and has no section Returns"
    raised = {
        ast.unparse(part.exc.func)
        for part in ast.walk(node)
        if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call) and isinstance(part.exc.func, ast.Name)
    }
    for error in sorted(raised - _names(sections, "Raises") - {"NotImplementedError"}):
        yield f"{name} raises {error} and does not say so under Raises"


def _sections(text: str) -> dict[str, str]:
    """The sections of a docstring by heading; the text before them under an empty one."""
    parts = HEADING.split(text)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _names(sections: Mapping[str, str], heading: str) -> set[str]:
    """The names that begin the entries of a section."""
    entries = ENTRY.findall(sections.get(heading, ""))
    return {name.strip().lstrip("*") for names in entries for name in names.split(",")}


def _parameters(node: Function) -> Iterator[str]:
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg not in ("self", "cls") and not argument.arg.startswith("_"):
            yield argument.arg
    yield from (argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None)


def _is_property(node: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _tree(module: str, root: Path) -> ast.Module:
    """The source of a module of ``tightbeam``; an empty one where it has none."""
    path = root.joinpath(*module.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module.startswith("tightbeam.") and file.is_file():
            return ast.parse(file.read_text("utf-8"))
    return ast.parse("")
