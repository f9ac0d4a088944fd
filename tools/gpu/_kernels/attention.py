"""The four attention operators at one size each, next to their counterparts in PyTorch.

Bytes are counted as if every number came from the device's memory once and every result went there once; FLOPs are
those of the two matrix products. All peers get the same inputs, the source mask among them. PyTorch's scaled dot
product attention is given the mask if the operator has one; as every position of the timed inputs counts, it is
also timed without a mask, which lets it choose kernels that take none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from tools.gpu._kernels.work import Peer, Tensors, Work

__all__ = ["BeamLatentWork", "BeamWork", "LatentWork", "SourceWork"]


def _mask(work: Work, N: int, odd: bool) -> torch.Tensor:
    """bool [B, N]: all positions of a source count, or of the sample b the first N - b N / (2 B)."""
    lengths = N - torch.arange(work.B, device=work.device) * (N // 2 if odd else 0) // work.B
    return torch.arange(N, device=work.device) < lengths[:, None]


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 if a position counts, -inf if not."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def _rows(work: LatentWork | SourceWork | _HistoryWork) -> int:
    return work.B * work.M


@dataclass(frozen=True)
class LatentWork(Work):
    """LatentAttention in EL's form: M x H queries a sample, as wide as the states [B, N, D].

    Bytes: states, mask, queries [R, H, D] and outputs [R, H, D]. FLOPs: 4 R H N D. The two products by head
    around it in EL-attention are matrix products with weights, and not counted.
    """

    M: int
    H: int
    K: int
    N: int

    operator = "LatentAttention"
    floats = ("query", "states")

    @property
    def attributes(self) -> dict[str, float]:
        return {"scale": self.K**-0.5}

    @property
    def D(self) -> int:
        return self.H * self.K

    @property
    def label(self) -> str:
        return f"B {self.B}, M {self.M}, H {self.H}, D {self.D:,}, N {self.N:,}"

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator = self.generator(seed)
        query = self.numbers(generator, _rows(self), self.H, self.D) * self.H**-0.5  # scores of deviation 1
        states = self.numbers(generator, self.B, self.N, self.D)
        return {"query": query, "states": states, "mask": _mask(self, self.N, odd)}

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"output": self.unset(_rows(self), self.H, self.D)}

    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        return outputs["output"].double()

    def peers(self) -> dict[str, Peer]:
        return {"two batched GEMMs and softmax": self._products}

    def _products(self, inputs: Tensors) -> Tensors:
        states = inputs["states"]
        query = inputs["query"].view(self.B, self.M * self.H, self.D)
        added = _added(inputs["mask"], states.dtype)[:, None].expand(-1, self.M * self.H, -1)
        scores = torch.baddbmm(added, query, states.mT, alpha=self.attributes["scale"])
        return {"output": torch.bmm(scores.softmax(-1), states).view(_rows(self), self.H, self.D)}

    def bytes_moved(self, inputs: Tensors) -> int:
        size = self.dtype.itemsize
        return self.B * self.N * (self.D * size + 1) + 2 * _rows(self) * self.H * self.D * size

    def flops(self, inputs: Tensors) -> int:
        return 4 * _rows(self) * self.H * self.N * self.D


@dataclass(frozen=True)
class SourceWork(Work):
    """SourceAttention: keys and values [B, H, N, K], one copy a sample.

    Bytes: keys, values, mask, queries [R, H K] and outputs. FLOPs: 4 R H N K.
    """

    M: int
    H: int
    K: int
    N: int

    operator = "SourceAttention"
    floats = ("query", "key", "value")

    @property
    def attributes(self) -> dict[str, float]:
        return {"scale": self.K**-0.5}

    @property
    def label(self) -> str:
        return f"B {self.B}, M {self.M}, H {self.H}, D {self.H * self.K:,}, N {self.N:,}"

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator = self.generator(seed)
        return {
            "query": self.numbers(generator, _rows(self), self.H * self.K),
            "key": self.numbers(generator, self.B, self.H, self.N, self.K),
            "value": self.numbers(generator, self.B, self.H, self.N, self.K),
            "mask": _mask(self, self.N, odd),
        }

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"output": self.unset(_rows(self), self.H * self.K)}

    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        return outputs["output"].double()

    def peers(self) -> dict[str, Peer]:
        return {
            "two batched GEMMs and softmax": self._products,
            "SDPA on deduplicated K/V": lambda inputs: self._sdpa(inputs, inputs["mask"][:, None, None]),
            "SDPA on deduplicated K/V, no mask": lambda inputs: self._sdpa(inputs, None),
        }

    def _query(self, inputs: Tensors) -> torch.Tensor:
        """[B, H, M, K]."""
        return inputs["query"].view(self.B, self.M, self.H, self.K).transpose(1, 2)

    def _joined(self, by_head: torch.Tensor) -> Tensors:
        return {"output": by_head.reshape(self.B, self.H, self.M, -1).transpose(1, 2).reshape(_rows(self), -1)}

    def _products(self, inputs: Tensors) -> Tensors:
        key, value = (inputs[name].flatten(0, 1) for name in ("key", "value"))
        query = self._query(inputs).reshape(self.B * self.H, self.M, self.K)
        added = _added(inputs["mask"], key.dtype).repeat_interleave(self.H, 0)[:, None].expand(-1, self.M, -1)
        scores = torch.baddbmm(added, query, key.mT, alpha=self.attributes["scale"])
        return self._joined(torch.bmm(scores.softmax(-1), value))

    def _sdpa(self, inputs: Tensors, mask: torch.Tensor | None) -> Tensors:
        found = scaled_dot_product_attention(
            self._query(inputs), inputs["key"], inputs["value"], attn_mask=mask, scale=self.attributes["scale"]
        )
        return self._joined(found)

    def bytes_moved(self, inputs: Tensors) -> int:
        D, size = self.H * self.K, self.dtype.itemsize
        return self.B * self.N * (2 * D * size + 1) + 2 * _rows(self) * D * size

    def flops(self, inputs: Tensors) -> int:
        return 4 * _rows(self) * self.H * self.N * self.K


def _ancestry(work: _HistoryWork, seed: int) -> torch.Tensor:
    """int32 [B, M, T]: every beam its own history, or, ``shared``, as a search makes it: at each step each beam
    continues a random one."""
    B, M, T = work.B, work.M, work.T
    own = torch.arange(M, dtype=torch.int32)
    if not work.shared:
        return own[:, None].expand(M, T).repeat(B, 1, 1).to(work.device)
    ancestry, generator = torch.zeros(B, M, T, dtype=torch.int32), torch.Generator().manual_seed(seed)
    for t in range(T):
        parents = torch.randint(M, (B, M, 1), generator=generator)
        ancestry[..., :t] = ancestry[..., :t].gather(1, parents.expand(B, M, t))
        ancestry[..., t] = own
    return ancestry.to(work.device)


def _lengths(work: _HistoryWork, odd: bool) -> torch.Tensor:
    """int32 [B]: T, or T - b modulo T."""
    shorter = torch.arange(work.B, device=work.device) % work.T if odd else 0
    return (torch.full((work.B,), work.T, device=work.device) - shorter).int()


def _kept_rows(ancestry: torch.Tensor) -> int:
    """Different (row, position) pairs that some beam's history names, but for the newest position, whose rows are
    inputs. All samples have the full length."""
    M = ancestry.shape[1]
    named = torch.stack([(ancestry[..., :-1] == m).any(1) for m in range(M)])
    return int(named.sum())


def _gathered(cache: torch.Tensor, ancestry: torch.Tensor) -> torch.Tensor:
    """Each row's own history [R, T, G, K] out of ``cache`` [R, G, T_max, K]."""
    B, M, T = ancestry.shape
    first = torch.arange(0, B * M, M, device=cache.device)[:, None, None]
    rows = (ancestry + first).view(B * M, T)
    return cache[rows, :, torch.arange(T, device=cache.device)]


def _write(cache: torch.Tensor, new: torch.Tensor, lengths: torch.Tensor) -> None:
    """``new`` [R, G K] at each row's newest position."""
    R, G, _, K = cache.shape
    newest = (lengths.long() - 1).repeat_interleave(R // len(lengths))
    cache[torch.arange(R, device=cache.device), :, newest] = new.view(R, G, K)


def _counted(work: _HistoryWork, lengths: torch.Tensor) -> torch.Tensor:
    """bool [R, 1, T]."""
    inside = torch.arange(work.T, device=work.device) < lengths[:, None]
    return inside.repeat_interleave(work.M, 0)[:, None]


def _newest(work: _HistoryWork, cache: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    R = len(cache)
    newest = (lengths.long() - 1).repeat_interleave(work.M)
    return cache[torch.arange(R, device=cache.device), :, newest].reshape(-1).double()


@dataclass(frozen=True)
class _HistoryWork(Work):
    """The operators over beam histories, T positions of T_max. ``shared``: beams share their beginnings, as in a
    search; else each beam has rows of its own.
    """

    M: int
    H: int
    K: int
    T: int
    T_max: int
    shared: bool

    @property
    def attributes(self) -> dict[str, float]:
        return {"scale": self.K**-0.5, "window": 0}

    @property
    def widths(self) -> str:
        """Shape of a row, for the label."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        kind = "histories of a search" if self.shared else "histories apart"
        return f"B {self.B}, M {self.M}, H {self.H}, {self.widths}, T {self.T}, {kind}"


@dataclass(frozen=True)
class BeamWork(_HistoryWork):
    """BeamAttention: self-attention over a cache that never moves, T positions of T_max.

    Bytes: the different rows of keys and values that histories name, ancestry, what is projected [R, 3 H K], the new
    rows written and the outputs. FLOPs: 4 R H T K.
    """

    operator = "BeamAttention"
    floats = ("projected", "key_cache", "value_cache")

    @property
    def widths(self) -> str:
        return f"D {self.H * self.K:,}"

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator, R = self.generator(seed), _rows(self)
        return {
            "projected": self.numbers(generator, R, 3 * self.H * self.K),
            "key_cache": self.numbers(generator, R, self.H, self.T_max, self.K),
            "value_cache": self.numbers(generator, R, self.H, self.T_max, self.K),
            "ancestry": _ancestry(self, seed),
            "lengths": _lengths(self, odd),
        }

    def outputs(self, inputs: Tensors) -> Tensors:
        caches = {f"{name}_out": inputs[name] for name in ("key_cache", "value_cache")}
        return {"output": self.unset(_rows(self), self.H * self.K), **caches}

    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        kept = [_newest(self, inputs[name], inputs["lengths"]) for name in ("key_cache", "value_cache")]
        return torch.cat([outputs["output"].double().reshape(-1), *kept])

    def peers(self) -> dict[str, Peer]:
        return {"gather, two GEMMs and softmax": self._products, "gather, SDPA": self._sdpa}

    def _parts(self, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [R, H, 1, K], keys and values [R, H, T, K]."""
        query, key, value = inputs["projected"].chunk(3, dim=1)
        for name, new in (("key_cache", key), ("value_cache", value)):
            _write(inputs[name], new, inputs["lengths"])
        keys, values = (_gathered(inputs[name], inputs["ancestry"]).transpose(1, 2) for name in _CACHES)
        return query.reshape(-1, self.H, 1, self.K), keys, values

    def _products(self, inputs: Tensors) -> Tensors:
        query, keys, values = self._parts(inputs)
        added = _added(_counted(self, inputs["lengths"]), keys.dtype)[:, None]
        scores = query @ keys.mT * self.attributes["scale"] + added
        return {"output": (scores.softmax(-1) @ values).flatten(1)}

    def _sdpa(self, inputs: Tensors) -> Tensors:
        query, keys, values = self._parts(inputs)
        mask = _counted(self, inputs["lengths"])[:, None]
        scale = self.attributes["scale"]
        return {"output": scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale).flatten(1)}

    def bytes_moved(self, inputs: Tensors) -> int:
        D, R, size = self.H * self.K, _rows(self), self.dtype.itemsize
        return 2 * _kept_rows(inputs["ancestry"]) * D * size + 4 * R * self.T + R * D * size * (3 + 2 + 1)

    def flops(self, inputs: Tensors) -> int:
        return 4 * _rows(self) * self.H * self.T * self.K


_CACHES = ("key_cache", "value_cache")


@dataclass(frozen=True)
class BeamLatentWork(_HistoryWork):
    """BeamLatentAttention, rows [G K] that are key and value at once: G = 1, the X form, or G = H, the K form.

    Bytes: the different rows that histories name, ancestry, queries [R, H K], new rows read and written, outputs
    [R, H, G K]. FLOPs: 2 R H T (K + G K).
    """

    G: int

    operator = "BeamLatentAttention"
    floats = ("query", "row", "cache")

    @property
    def widths(self) -> str:
        return f"G {self.G}, D {self.G * self.K:,}"

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator, R = self.generator(seed), _rows(self)
        return {
            "query": self.numbers(generator, R, self.H * self.K),
            "row": self.numbers(generator, R, self.G * self.K),
            "cache": self.numbers(generator, R, self.G, self.T_max, self.K),
            "ancestry": _ancestry(self, seed),
            "lengths": _lengths(self, odd),
        }

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"output": self.unset(_rows(self), self.H * self.G * self.K), "cache_out": inputs["cache"]}

    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        kept = _newest(self, inputs["cache"], inputs["lengths"])
        return torch.cat([outputs["output"].double().reshape(-1), kept])

    def peers(self) -> dict[str, Peer]:
        return {"gather, two GEMMs and softmax": self._products}

    def _products(self, inputs: Tensors) -> Tensors:
        R, G, K = _rows(self), self.G, self.K
        _write(inputs["cache"], inputs["row"], inputs["lengths"])
        rows = _gathered(inputs["cache"], inputs["ancestry"])  # [R, T, G, K]
        query = inputs["query"].view(R, G, self.H // G, K)
        scores = (query @ rows.permute(0, 2, 3, 1)).flatten(1, 2) * self.attributes["scale"]  # [R, H, T]
        scores = scores + _added(_counted(self, inputs["lengths"]), rows.dtype)
        return {"output": torch.bmm(scores.softmax(-1), rows.flatten(2)).flatten(1)}

    def bytes_moved(self, inputs: Tensors) -> int:
        R, width, size = _rows(self), self.G * self.K, self.dtype.itemsize
        rows = _kept_rows(inputs["ancestry"]) * width + R * (self.H * self.K + 2 * width + self.H * width)
        return rows * size + 4 * R * self.T

    def flops(self, inputs: Tensors) -> int:
        return 2 * _rows(self) * self.H * self.T * (self.K + self.G * self.K)
