"""The formats of documents, each of which is a file of the folder ``formats``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath

from tightbeam.deploy.documents import formats as folder
from tightbeam.deploy.documents.format import Format
from tightbeam.deploy.errors import InputError

__all__ = ["format_of", "formats"]


@cache
def formats() -> Mapping[str, Format]:
    """Return the formats by their names: the value ``FORMAT`` of each file in ``formats/``."""
    names = sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if not module.name.startswith("_"))
    found = [importlib.import_module(f"{folder.__name__}.{name}").FORMAT for name in names]
    return {each.name: each for each in found}


def format_of(name: str, asked: str | None = None) -> Format:
    """Return the format of a document: the one that is asked for, or else the one of its file's ending, or text.

    Raises InputError if no format is called so.
    """
    known = formats()
    if asked is not None:
        if asked not in known:
            raise InputError(f"the format of documents {asked[:40]!r} is unknown; pass one of {', '.join(known)}")
        return known[asked]
    ending = PurePath(name).suffix.lower()
    return next((each for each in known.values() if ending in each.endings), known["text"])
