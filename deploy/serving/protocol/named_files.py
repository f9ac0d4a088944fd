"""Files of the server's machine that requests may name: tries and glossaries, and no other file.

They are in folders beside a served bundle, or come with the command that serves it:

REPOSITORY/NAME/VERSION/tries/catalogue.trie     the request's parameter trie=catalogue
REPOSITORY/NAME/VERSION/glossaries/law.csv       the request's parameter glossary=law
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from tightbeam.deploy.errors import InputError

__all__ = ["GLOSSARIES", "NO_FILES", "SUFFIXES", "TRIES", "NamedFiles", "by_name", "copy_beside", "files_beside"]

TRIES, GLOSSARIES = "tries", "glossaries"
SUFFIXES = {TRIES: ".trie", GLOSSARIES: ".csv"}
"""Folder beside the bundle -> the suffix of its files."""


class NamedFiles(BaseModel):
    """Files of a command, by the names that requests call them.

    Attributes
    ----------
    tries, glossaries : dict
    """

    tries: dict[str, str] = {}
    glossaries: dict[str, str] = {}


NO_FILES = NamedFiles()


def by_name(files: Iterable[Path], folder: str) -> dict[str, str]:
    """Return files by their names without the ending. Raises InputError if two files share one."""
    found: dict[str, str] = {}
    for file in files:
        if file.stem in found:
            raise InputError(f"two of the {folder} have the name {file.stem}; rename a file")
        found[file.stem] = str(file)
    return found


def files_beside(bundle: Path, folder: str) -> dict[str, str]:
    """Return the files in a folder beside a served bundle, by name."""
    return by_name(sorted((bundle.parent / folder).glob(f"*{SUFFIXES[folder]}")), folder)


def copy_beside(files: Iterable[Path], version: Path, folder: str) -> None:
    """Copy files into a folder of a version, where its bundle is."""
    for file in files:
        (version / folder).mkdir(exist_ok=True)
        shutil.copyfile(file, version / folder / f"{file.stem}{SUFFIXES[folder]}")
