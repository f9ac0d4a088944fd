"""Settings of sampling: how scores become probabilities, and the stream of random numbers that tokens are drawn with.

Source: transformers 5.23 `GenerationMixin._get_logits_processor`, the part for ``do_sample``. The draw is our own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.generation.fields import Fields

__all__ = ["Sampling", "read_sampling"]

DEFAULT_TOP_K = 50
"""``top_k`` of transformers where none is set."""
SEEDS = 1 << 64


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
        None: the system's entropy, for every input anew.
    key : bytes
        Key of the random numbers of one input; empty until the input is known (``for_input``).
    """

    temperature: float = 1.0
    top_k: int = DEFAULT_TOP_K
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    keep: int = 1
    seed: int | None = None
    key: bytes = b""

    @property
    def truncates(self) -> bool:
        """True where some tokens may be left out."""
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1

    def for_beams(self, ends: int) -> Sampling:
        """Return these settings for beams that any of so many tokens ends: one more than these is kept."""
        keep = max(2, 1 + ends)
        return replace(self, keep=keep, top_k=max(self.top_k, keep) if self.top_k else 0)

    def for_input(self, *source: Iterable[int] | Array, entropy: bytes = b"") -> Sampling:
        """Return these settings with the key of one input: a digest of the seed and of what the model is given.

        Parameters
        ----------
        *source
            Token ids without padding, or float32 features.
        entropy : bytes
            Taken where there is no seed; by default 16 bytes of the system's.
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
        """The random numbers float64 [count] in [0, 1) of one returned sequence, by new token.

        They are those of Philox4x64-10 (Salmon et al. 2011) with this input's key, from a counter that begins with
        ``sequence``: number t depends on the key, the sequence and t alone.
        """
        key = np.frombuffer(self.key, "<u8")
        philox = np.random.Philox(key=key.astype(np.uint64), counter=np.array([0, sequence, 0, 0], np.uint64))
        raw: Array = philox.random_raw(count)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def read_sampling(fields: Fields) -> Sampling | None:
    """Read the settings of sampling; None where nothing is sampled.

    Raises
    ------
    GenerationError
        A value is out of range, or is set in the call without ``do_sample``.
    """
    wanted = fields.get("do_sample", False)
    if not isinstance(wanted, bool | np.bool_):
        raise fields.error("do_sample", "is neither true nor false", "pass True or False")
    if not wanted:
        fields.check_without_sampling()
        return None
    seed = fields.integer("seed", 0, minimum=0) if "seed" in fields else None
    if seed is not None and seed >= SEEDS:
        raise fields.error("seed", "has more than 64 bits", f"pass one from 0 to {SEEDS - 1}")
    temperature = fields.real("temperature", 1.0)
    if not 1e-30 < temperature < 1e30:
        raise fields.error("temperature", "is not above 0", "pass a number such as 0.7, or do_sample=False")
    return Sampling(
        temperature=temperature,
        top_k=fields.integer("top_k", DEFAULT_TOP_K, minimum=0),
        top_p=_share(fields, "top_p", 1.0, least=0.0),
        min_p=_share(fields, "min_p", 0.0, least=0.0),
        typical_p=_share(fields, "typical_p", 1.0, least=float(np.finfo(np.float32).tiny)),
        seed=seed,
    )


def _share(fields: Fields, name: str, default: float, *, least: float) -> float:
    value = fields.real(name, default)
    if not least <= value <= 1:
        raise fields.error(name, "is no share", f"pass a number {'from' if not least else 'above'} 0 to 1")
    return value
