"""Beginnings of outputs that a trie constrains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.generation.settings import Settings
from tightbeam.deploy.tries.trie import ROOT

__all__ = ["check_beginning"]


def check_beginning(settings: Settings, tokens: Sequence[int]) -> None:
    """Check that something may follow the tokens of ``decoder_input_ids`` in the trie of the settings, if there is one.

    Parameters
    ----------
    settings : Settings
    tokens : sequence of int
        The last tokens of ``decoder_input_ids``, which follow the trie from its root.

    Raises
    ------
    GenerationError
        The tokens leave the trie, or are a whole entry of it.
    """
    trie, node = settings["trie"], ROOT
    if trie is None:
        return
    for token in tokens:
        if token not in trie.children(node):
            problem = f"leaves {trie!r} with {token}"
            raise settings.error("decoder_input_ids", problem, fix="pass the beginning of an entry")
        node = int(trie.follow(np.array(node, np.int32), np.array(token)))
    if not len(trie.children(node)):
        problem = f"is an entry of {trie!r}, which nothing follows"
        raise settings.error("decoder_input_ids", problem, fix="pass fewer tokens")
