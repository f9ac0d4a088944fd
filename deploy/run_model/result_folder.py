"""A folder of results: a file for each recording or image, with its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.run_model.input_files import is_folder

__all__ = ["ResultFolder", "names_folder"]


def names_folder(output: str) -> bool:
    """True for the name of a folder: one that exists, or a name that ends with a slash."""
    ends = (os.sep, "/")
    return bool(output.strip()) and (output.endswith(ends) or is_folder(output))


class ResultFolder:
    """A folder with a file of results for each input file, named after it.

    Parameters
    ----------
    folder : str
        The folder, made if it is missing.
    kind : str
        The end of the names of its files, such as "srt".
    inside : function
        Returns the name of an input file's result within the folder, with the input's own suffix.
    force : bool
        Replace existing files.

    Raises
    ------
    InputError
        The folder cannot be made.
    """

    def __init__(self, folder: str, kind: str, inside: Callable[[str], str], *, force: bool) -> None:
        self._folder, self._kind, self._inside, self._force = Path(folder), kind, inside, force
        self._written: set[Path] = set()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise InputError(f"cannot make the folder {folder}: {reason}; pass another --output") from None

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError, before hours of work, if two inputs have the same file, or a file exists."""
        owners: dict[Path, str] = {}
        for name in names:
            path = self._path(name)
            if path in owners:
                raise InputError(_shared(path, f"{owners[path]} and {name}"))
            self._check_free(path)
            owners[path] = name

    def open(self, name: str) -> TextIO:
        """Open the file of an input. Raises InputError if the content of a file would be lost."""
        path = self._path(name)
        if path in self._written:
            raise InputError(_shared(path, f"{name} and another file"))
        self._check_free(path)
        self._written.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")

    def _path(self, name: str) -> Path:
        path = self._folder / self._inside(name)
        return path.with_name(f"{path.stem}.{self._kind}")

    def _check_free(self, path: Path) -> None:
        if path.exists() and not self._force:
            raise InputError(f"{path} exists; pass --force to replace it, or another --output")


def _shared(path: Path, names: str) -> str:
    return f"{path} would hold the results of {names}; rename one, or run it with another --output"
