"""Tries of a served model: files beside its bundle, which requests call by name.

REPOSITORY/NAME/VERSION/tries/catalogue.trie     the request's parameter trie=catalogue

A request cannot name a file of the server's machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.given import GENERATION_CONFIG
from tightbeam.deploy.serving.config import RepositoryError
from tightbeam.deploy.tries.file import read_trie

__all__ = ["check_tries", "copy_tries", "served_tries", "with_served_trie"]

TRIES, SUFFIX = "tries", ".trie"
TRIE = "trie"


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
        shutil.copyfile(file, version / TRIES / f"{file.stem}{SUFFIX}")


def served_tries(bundle: Path) -> dict[str, Path]:
    """The tries beside a served bundle, by name."""
    return {file.stem: file for file in sorted((bundle.parent / TRIES).glob(f"*{SUFFIX}"))}


def with_served_trie(settings: Mapping[str, Any], tries: Mapping[str, Path]) -> dict[str, Any]:
    """The settings of a request, with the trie that they name.

    Raises
    ------
    InputError
        There is none of this name, or its file is damaged.
    """
    config = settings.get(GENERATION_CONFIG)
    if isinstance(config, Mapping) and TRIE in config:
        raise InputError(f"{TRIE} is no setting of {GENERATION_CONFIG}; pass it as a parameter of its own")
    name = settings.get(TRIE)
    if name is None:
        return dict(settings)
    if not isinstance(name, str) or name not in tries:
        held = f"it has {', '.join(tries)}" if tries else "it has none (triton-repo --trie)"
        raise InputError(f"{TRIE}={name!r} is no trie of this model; {held}")
    return {**settings, TRIE: read_trie(tries[name])}
