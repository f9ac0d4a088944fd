"""Tries of a served model: files beside its bundle, which requests call by name.

REPOSITORY/NAME/VERSION/tries/catalogue.trie     the request's parameter trie=catalogue

A request cannot name a file of the server's machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.serving.protocol.parameters import TRIE_SUFFIX, TRIES
from tightbeam.deploy.serving.repository.config import RepositoryError
from tightbeam.deploy.tries.file import read_trie

__all__ = ["check_tries", "copy_tries"]


def check_tries(files: Sequence[Path], vocabulary: int) -> None:
    """Raise RepositoryError for tries that cannot be served with a model of so many tokens."""
    names = [file.stem for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RepositoryError(f"two of the tries have the name {twice}; rename a file")
    for file in files:
        try:
            trie = read_trie(file)
        except InputError as error:
            raise RepositoryError(str(error)) from None
        if trie.vocabulary > vocabulary:
            raise RepositoryError(
                f"{file} holds token {trie.vocabulary - 1}, outside the vocabulary of {vocabulary}; "
                "build it with this bundle"
            )


def copy_tries(files: Sequence[Path], version: Path) -> None:
    """Copy files of tries into the folder of a version."""
    for file in files:
        (version / TRIES).mkdir(exist_ok=True)
        shutil.copyfile(file, version / TRIES / f"{file.stem}{TRIE_SUFFIX}")
