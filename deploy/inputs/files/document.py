"""Files of documents and of glossaries."""

from __future__ import annotations

from tightbeam.deploy.documents.glossary import MOST_BYTES, Term, read_terms
from tightbeam.deploy.errors import InputError, open_fault
from tightbeam.deploy.inputs.files.regular import not_regular

__all__ = ["read_content", "terms_of"]


def read_content(name: str, most: int) -> bytes:
    """Return the content of a file, or its first ``most`` bytes and one more. Raises InputError."""
    try:
        if kind := not_regular(name):
            raise InputError(f"{name} is {kind}; pass a file")
        with open(name, "rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise InputError(f"{open_fault(name, error)}; pass another file") from None


def terms_of(name: str) -> list[Term]:
    """Read the terms of the glossary in a file. Raises InputError."""
    return read_terms(read_content(name, MOST_BYTES), name)
