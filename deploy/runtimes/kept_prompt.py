"""A prompt whose keys and values are kept for a prompt that continues it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.errors import InputError

__all__ = ["KeptPrompt", "check_kept"]


class KeptPrompt:
    """The keys and values of a conversation's latest prompt, so that the next prompt is encoded from where it differs.

    One conversation has one, and gives it to each of its prompts, one after the other: `Runner.chat`,
    `Runner.stream_text` and `Runner.sample` take it as ``kept``. It holds one copy of the longest prompt's source
    cache. An answer is part of the next prompt, and is encoded with it. The generated tokens are the same as if the
    whole prompt were encoded. The whole prompt is still encoded on a GPU, with an int8 source cache, with any source
    cache but ``kv``, and by bundles made before ``prompt.onnx``.

    Attributes
    ----------
    reused : int
        Tokens of the latest prompt that were not encoded again.
    lock : threading.Lock
        Held while a prompt is encoded, so that two runners do not write at once.

    Examples
    --------
    >>> kept = KeptPrompt()
    >>> answer = runner.chat(messages, kept=kept)
    >>> messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And of Sweden?"}]
    >>> answer = runner.chat(messages, kept=kept)
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._caches: dict[str, Array] = {}
        self.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values, with the room of the arrays that hold them."""
        return sum(array.nbytes for array in self._caches.values())

    def clear(self) -> None:
        """Forget the prompt, and free its memory."""
        self.reused = 0
        self._runtime: object = None
        self._tokens = np.zeros(0, np.int64)
        self._caches.clear()

    def begin(self, runtime: object, tokens: Ints, caches: Mapping[str, Array]) -> int:
        """Copy the keys and values of the tokens that a prompt begins with to its caches.

        Parameters
        ----------
        runtime : object
            The runtime that encodes the prompt. What another one encoded is forgotten.
        tokens : int64 [N]
            The prompt.
        caches : mapping of str to Array [1, G, N or more, .]
            Its caches, by name.

        Returns
        -------
        int
            Number of tokens that need not be encoded.
        """
        if self._runtime is not runtime:
            self.clear()
            self._runtime = runtime
        shorter = min(len(tokens), len(self._tokens))
        differ = np.flatnonzero(tokens[:shorter] != self._tokens[:shorter])
        self.reused = int(differ[0]) if len(differ) else shorter
        for name, array in caches.items() if self.reused else ():
            array[0, :, : self.reused] = self._caches[name][:, : self.reused]
        self._tokens = self._tokens[: self.reused]  # until the new prompt is kept
        return self.reused

    def keep(self, tokens: Ints, caches: Mapping[str, Array]) -> None:
        """Keep a prompt that was begun here, and is now encoded.

        Parameters
        ----------
        tokens : int64 [N]
            The prompt, as for `begin`.
        caches : mapping of str to Array [1, G, N or more, .]
            Its caches, by name.
        """
        for name, array in caches.items():
            own = self._caches.get(name)
            if own is None or own.shape[1] < len(tokens):
                _, G, _, width = array.shape
                larger = np.empty((G, len(tokens) * 5 // 4, width), array.dtype)
                if own is not None:
                    larger[:, : self.reused] = own[:, : self.reused]
                own = self._caches[name] = larger
            own[:, self.reused : len(tokens)] = array[0, :, self.reused : len(tokens)]
        self._tokens = tokens.copy()


def check_kept(given: Any) -> KeptPrompt | None:
    """Return a caller's kept prompt, or None. Raises InputError for another object, such as the class itself."""
    if given is not None and not isinstance(given, KeptPrompt):
        held = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
        raise InputError(f"kept is {held}, expected a KeptPrompt; pass the same KeptPrompt() for each prompt")
    return given
