"""Tries of a served model, which requests call by name.

A request cannot name a file of the server's machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.generation.layers import GENERATION_CONFIG
from tightbeam.deploy.serving.protocol.named_files import TRIES, files_beside
from tightbeam.deploy.tries.file import read_trie

__all__ = ["served_tries", "with_served_trie"]

TRIE = "trie"


def served_tries(bundle: Path, others: Mapping[str, str]) -> dict[str, str]:
    """Return the files of the tries next to a served bundle, and those of ``others``, by name."""
    return {**files_beside(bundle, TRIES), **others}


def with_served_trie(settings: Mapping[str, Any], tries: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a request, with the trie that they name.

    Raises
    ------
    InputError
        The model has no trie of this name.
    BundleError
        The file of the trie is damaged.
    """
    config = settings.get(GENERATION_CONFIG)
    if isinstance(config, Mapping) and TRIE in config:
        raise InputError(f"{TRIE} is not a setting of {GENERATION_CONFIG}; pass it as a parameter of its own")
    name = settings.get(TRIE)
    if name is None:
        return dict(settings)
    if not isinstance(name, str) or name not in tries:
        held = f"it has {', '.join(tries)}" if tries else "it has none (triton-repo --trie, serve-model --trie)"
        raise InputError(f"{TRIE}={name!r} is not a trie of this model; {held}")
    try:
        return {**settings, TRIE: read_trie(tries[name])}
    except InputError as error:  # of who serves the model, and not of its client
        raise BundleError(str(error)) from None
