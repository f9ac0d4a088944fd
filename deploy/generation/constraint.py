"""The setting ``trie``: the sequences that the output may be, and beginnings of them that are given."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.fields import Fields
from tightbeam.deploy.generation.given import CHECKPOINT
from tightbeam.deploy.tries.file import read_trie
from tightbeam.deploy.tries.trie import ROOT, Trie

__all__ = ["check_beginning", "read_constraint"]

FIX = "pass a file that build-trie has made"


def read_constraint(fields: Fields) -> Trie | None:
    """Read the trie that the settings name.

    Parameters
    ----------
    fields : Fields
        Merged settings; ``trie`` is a file or a `Trie`. A checkpoint cannot name one.

    Returns
    -------
    Trie or None

    Raises
    ------
    GenerationError
        It does not go with another setting, is none, cannot be read, or has tokens that the model does not score.
    """
    given = fields.get("trie", None)
    if given is None:
        return None
    if fields.source("trie") == CHECKPOINT:
        raise fields.error("trie", "names a file, which no checkpoint may", "remove it there")
    if not isinstance(given, Trie | str | os.PathLike):
        raise fields.error("trie", "is no trie", FIX)
    try:
        trie = given if isinstance(given, Trie) else read_trie(given)
    except InputError as error:
        raise GenerationError(str(error)) from None
    if trie.vocabulary > fields.vocab_size:
        holds = f"holds token {trie.vocabulary - 1}, outside the vocabulary of {fields.vocab_size}"
        raise fields.error("trie", holds, "build it with this model's tokenizer")
    return trie


def check_beginning(fields: Fields, trie: Trie | None, tokens: Sequence[int]) -> None:
    """Raise GenerationError where nothing may follow the tokens of ``decoder_input_ids``.

    Parameters
    ----------
    fields : Fields
        Merged settings.
    trie : Trie or None
    tokens : sequence of int
        Those of its tokens that follow the trie from its root.
    """
    if trie is None:
        return
    node = ROOT
    for token in tokens:
        if token not in trie.children(node):
            raise fields.error("decoder_input_ids", f"leaves {trie!r} with {token}", "pass the beginning of an entry")
        node = int(trie.follow(np.array(node, np.int32), np.array(token)))
    if not len(trie.children(node)):
        raise fields.error("decoder_input_ids", f"is an entry of {trie!r}, which nothing follows", "pass fewer tokens")
