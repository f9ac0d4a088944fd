"""Settings of sampling: how scores become probabilities, and the stream of random numbers that tokens are drawn with.

Source: transformers 5.24 `GenerationMixin._get_logits_processor`, the part for ``do_sample``. The draw is our own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tightbeam.deploy.arrays import Array

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """Resolved settings of sampling.

    Attributes
    ----------
    temperature : float
        Scores are divided by it.
    top_k : int
        The most likely tokens that are kept, and those that equal the last one; 0 keeps all.
    top_p : float
        The fewest most likely tokens with this probability together are kept; 1 keeps all.
    min_p : float
        Tokens of at least this share of the best one's probability are kept; 0 keeps all.
    typical_p : float
        The fewest tokens whose information is nearest to the expected one, with this probability together, are kept;
        1 keeps all.
    keep : int
        The tokens that are kept in any case; more than one with beams.
    seed : int or None
        None takes the system's entropy, for every input anew.
    key : bytes
        Key of the random numbers of one input; empty until the input is known (``for_input``).
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    keep: int = 1
    seed: int | None = None
    key: bytes = b""

    @property
    def truncates(self) -> bool:
        """True if some tokens may be left out."""
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1

    def for_beams(self, ends: int) -> Sampling:
        """Return these settings for beams that any of ``ends`` tokens ends: one token more than these is kept."""
        keep = max(2, 1 + ends)
        return replace(self, keep=keep, top_k=max(self.top_k, keep) if self.top_k else 0)

    def for_input(self, *source: Iterable[int] | Array, entropy: bytes = b"") -> Sampling:
        """Return these settings with the key of one input: a digest of the seed and of the model's input.

        Parameters
        ----------
        *source
            Token ids without padding, or float32 features.
        entropy : bytes
            Random bytes for the key, read if no seed is set. By default the system gives 16.
        """
        if self.seed is None:
            return replace(self, key=hashlib.blake2b(entropy or secrets.token_bytes(16), digest_size=16).digest())
        content = hashlib.blake2b(self.seed.to_bytes(8, "little"), digest_size=16, person=b"tightbeam-draws")
        for part in source:
            values = np.asarray(part if isinstance(part, np.ndarray) else list(part))
            values = np.ascontiguousarray(values, "<f4" if values.dtype.kind == "f" else "<i8")
            content.update(values.size.to_bytes(8, "little") + values.tobytes())
        return replace(self, key=content.digest())

    def uniforms(self, sequence: int, count: int) -> Array:
        """Return the random numbers float64 [count] in [0, 1) of one returned sequence, by new token.

        They are the numbers of Philox4x64-10 (Salmon et al. 2011) with this input's key, from a counter that begins
        with ``sequence``: number t depends on the key, the sequence and t alone.
        """
        key = np.frombuffer(self.key, "<u8")
        philox = np.random.Philox(key=key.astype(np.uint64), counter=np.array([0, sequence, 0, 0], np.uint64))
        raw: Array = philox.random_raw(count)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
