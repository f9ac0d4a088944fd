"""Glossaries of a served model: files beside its bundle, which requests call by name.

REPOSITORY/NAME/VERSION/glossaries/law.csv     the request's parameter glossary=law
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files.document import terms_of
from tightbeam.deploy.serving.protocol.parameters import GLOSSARIES, GLOSSARY_SUFFIX
from tightbeam.deploy.serving.repository.config import RepositoryError

__all__ = ["check_glossaries", "copy_glossaries"]


def check_glossaries(files: Sequence[Path], *, translates: bool) -> None:
    """Raise RepositoryError for files that are no glossaries, or a model whose texts have no terms."""
    if files and not translates:
        raise RepositoryError("--glossary is for a model of texts with an encoder and a tokenizer; leave it out")
    names = [file.stem for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RepositoryError(f"two of the glossaries have the name {twice}; rename a file")
    for file in files:
        try:
            terms_of(str(file))
        except InputError as error:
            raise RepositoryError(str(error)) from None


def copy_glossaries(files: Sequence[Path], version: Path) -> None:
    """Copy glossaries into the folder of a version."""
    for file in files:
        (version / GLOSSARIES).mkdir(exist_ok=True)
        shutil.copyfile(file, version / GLOSSARIES / f"{file.stem}{GLOSSARY_SUFFIX}")
