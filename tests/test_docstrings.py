"""What the Python page shows is documented, by pydoclint's rules for parameters, returns and errors."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tools.docs.pages import ROOT

DIRECTIVE = re.compile(r"^::: (tightbeam\.[\w.]+)$", re.MULTILINE)
OPTIONS = {
    "style": "numpy",
    "skip-checking-short-docstrings": False,
    "allow-init-docstring": True,
    "ignore-private-args": True,
    "check-arg-order": False,
    "check-return-types": False,
    "check-class-attributes": False,
    "arg-type-hints-in-docstring": False,
}
RULES = {
    "DOC101": "fewer parameters are described than there are",
    "DOC102": "more parameters are described than there are",
    "DOC103": "other parameters are described than there are",
    "DOC201": "no section Returns",
    "DOC501": "no section Raises",
}
LINE = re.compile(r"(DOC\d+): (?:Method|Function) `((\w+)[\w.]*)`", re.MULTILINE)


def shown() -> list[Any]:
    """The objects that the page shows."""
    names = DIRECTIVE.findall((ROOT / "docs" / "reference" / "python.md").read_text("utf-8"))
    return [getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]


def faults(files: Iterable[Path], objects: set[str]) -> list[str]:
    """What pydoclint finds in functions and methods of some objects, a line each."""
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    command = [sys.executable, "-m", "pydoclint.main", "--quiet", *options, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = LINE.findall(done.stdout + done.stderr)
    public = [(rule, name) for rule, name, first in found if first in objects and not re.search(r"\._[a-z]", name)]
    return [f"{name}: {RULES[rule]}" for rule, name in public if rule in RULES]


def test_public_objects_are_documented() -> None:
    objects = shown()
    files = {Path(inspect.getsourcefile(each) or "") for each in objects}
    assert faults(sorted(files), {each.__name__ for each in objects}) == []
    for each in objects:
        members = [member for name, member in vars(each).items() if name[0] != "_"] if inspect.isclass(each) else []
        for one in (each, *filter(inspect.isfunction, members)):
            first = (inspect.getdoc(one) or "").partition("\n")[0]
            assert first.endswith((".", "::")), f"{one.__qualname__} has no docstring that begins with a sentence"


SOURCE = '''
class Thing:
    """A thing.

    Parameters
    ----------
    size : int
        Its size.
    """

    def __init__(self, size): ...

    def grow(self, by: int) -> int:
        """Grow.

        Parameters
        ----------
        by : int
            Amount.

        Returns
        -------
        int

        Raises
        ------
        KeyError
            Never.
        """
        raise KeyError("by")
'''


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("size : int\n", "length : int\n", "Thing.__init__: other parameters are described than there are"),
        ("by : int\n", "by_much : int\n", "Thing.grow: other parameters are described than there are"),
        ("by: int)", "by: int, slowly: bool)", "Thing.grow: fewer parameters are described than there are"),
        ("Returns\n        -------\n        int\n", "", "Thing.grow: no section Returns"),
        ("Raises\n        ------\n        KeyError\n            Never.\n", "", "Thing.grow: no section Raises"),
    ],
)
def test_missing_documentation_is_found(tmp_path: Path, old: str, new: str, fault: str) -> None:
    file = tmp_path / "thing.py"
    file.write_text(SOURCE)
    assert faults([file], {"Thing"}) == []
    assert old in SOURCE
    file.write_text(SOURCE.replace(old, new))
    assert faults([file], {"Thing"})[0] == fault
    assert faults([file], {"Other"}) == []
