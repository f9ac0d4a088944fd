"""The docstrings of Python's standard library, as it lies on this machine: running text for the Llama type."""

from __future__ import annotations

import ast
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

HELD_OUT_SHARE = 20  # one module in twenty is never trained on
SHORTEST, LONGEST = 60, 3000
"""Characters of a docstring that is taken."""
LEFT_OUT = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"}


def read(modules: int | None = None, *, held_out: bool = False) -> list[str]:
    """Return different docstrings, in the order of their files.

    Parameters
    ----------
    modules : int, optional
        Stop after so many modules.
    held_out : bool
        Take the modules that are held out of training instead of the others.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(root).parts)]
    chosen = [path for path in paths if is_held_out(path.relative_to(root).as_posix()) == held_out]
    return list(dict.fromkeys(text for path in chosen[:modules] for text in _docstrings(path)))


def is_held_out(module: str) -> bool:
    """True if the docstrings of this module, a path below the library's folder, are held out of training."""
    return zlib.crc32(module.encode()) % HELD_OUT_SHARE == 0


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and SHORTEST <= len(text) <= LONGEST:
                yield text
