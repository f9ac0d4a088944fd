"""Tries of a served model: files beside its bundle, which requests call by name.

REPOSITORY/NAME/VERSION/tries/catalogue.trie     the request's parameter trie=catalogue

A request cannot name a file of the server's machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tightbeam.deploy.serving.protocol.parameters import TRIE_SUFFIX, TRIES

__all__ = ["copy_tries"]


def copy_tries(files: Sequence[Path], version: Path) -> None:
    """Copy files of tries into the folder of a version."""
    for file in files:
        (version / TRIES).mkdir(exist_ok=True)
        shutil.copyfile(file, version / TRIES / f"{file.stem}{TRIE_SUFFIX}")
