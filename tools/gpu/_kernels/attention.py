"""The four attention operators at one size each, next to their counterparts in PyTorch.

Bytes are counted as if every number came from the device's memory once and every result went there once; FLOPs are
those of the two matrix products. All peers get the same inputs, the source mask among them. PyTorch's scaled dot
product attention is given the mask if the operator has one; as every position of the timed inputs counts, it is
also timed without a mask, which lets it choose kernels that take none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from tools.gpu._kernels.work import Peer, Tensors, Work

__all__ = ["BeamLatentWork", "BeamWork", "LatentWork", "SourceWork"]


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 if a position counts, -inf if not."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


@dataclass(frozen=True)
class _Attention(Work):
    """M beams of a sample, H heads of width K."""

    M: int
    H: int
    K: int

    @property
    def R(self) -> int:
        return self.B * self.M

    @property
    def D(self) -> int:
        return self.H * self.K


@dataclass(frozen=True)
class _SourceSide(_Attention):
    """The operators over a source of N positions."""

    N: int

    @property
    def attributes(self) -> dict[str, float]:
        return {"scale": self.K**-0.5}

    @property
    def label(self) -> str:
        return f"B {self.B}, M {self.M}, H {self.H}, D {self.D:,}, N {self.N:,}"

    def mask(self, odd: bool) -> torch.Tensor:
        """bool [B, N]: all positions of a source count, or of the sample b the first N - b N / (2 B)."""
        lengths = self.N - torch.arange(self.B, device=self.device) * (self.N // 2 if odd else 0) // self.B
        return torch.arange(self.N, device=self.device) < lengths[:, None]


@dataclass(frozen=True)
class LatentWork(_SourceSide):
    """LatentAttention in EL's form: M x H queries a sample, as wide as the states [B, N, D].

    Bytes: states, mask, queries [R, H, D] and outputs [R, H, D]. FLOPs: 4 R H N D. The two products by head
    around it in EL-attention are matrix products with weights, and not counted.
    """

    operator = "LatentAttention"
    floats = ("query", "states")

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator = self.generator(seed)
        query = self.numbers(generator, self.R, self.H, self.D) * self.H**-0.5  # scores of deviation 1
        return {"query": query, "states": self.numbers(generator, self.B, self.N, self.D), "mask": self.mask(odd)}

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"output": self.unset(self.R, self.H, self.D)}

    def peers(self) -> dict[str, Peer]:
        return {"two batched GEMMs and softmax": self._products}

    def _products(self, inputs: Tensors) -> Tensors:
        states = inputs["states"]
        query = inputs["query"].view(self.B, self.M * self.H, self.D)
        added = _added(inputs["mask"], states.dtype)[:, None].expand(-1, self.M * self.H, -1)
        scores = torch.baddbmm(added, query, states.mT, alpha=self.attributes["scale"])
        return {"output": torch.bmm(scores.softmax(-1), states).view(self.R, self.H, self.D)}

    def bytes_moved(self, inputs: Tensors) -> int:
        size = self.dtype.itemsize
        return self.B * self.N * (self.D * size + 1) + 2 * self.R * self.H * self.D * size

    def flops(self, inputs: Tensors) -> int:
        return 4 * self.R * self.H * self.N * self.D


@dataclass(frozen=True)
class SourceWork(_SourceSide):
    """SourceAttention: keys and values [B, H, N, K], one copy a sample.

    Bytes: keys, values, mask, queries [R, H K] and outputs. FLOPs: 4 R H N K.
    """

    operator = "SourceAttention"
    floats = ("query", "key", "value")

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator, rows = self.generator(seed), (self.B, self.H, self.N, self.K)
        shapes = {"query": (self.R, self.D), "key": rows, "value": rows}
        return {**{name: self.numbers(generator, *shape) for name, shape in shapes.items()}, "mask": self.mask(odd)}

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"output": self.unset(self.R, self.D)}

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
        return {"output": by_head.reshape(self.B, self.H, self.M, -1).transpose(1, 2).reshape(self.R, -1)}

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
        size = self.dtype.itemsize
        return self.B * self.N * (2 * self.D * size + 1) + 2 * self.R * self.D * size

    def flops(self, inputs: Tensors) -> int:
        return 4 * self.R * self.N * self.D


@dataclass(frozen=True)
class _HistoryWork(_Attention):
    """The operators over beam histories, T positions of T_max. ``shared``: beams share their beginnings, as in a
    search; else each beam has rows of its own. ``caches``: inputs that are written in place.
    """

    T: int
    T_max: int
    shared: bool

    caches: ClassVar[tuple[str, ...]] = ("cache",)

    @property
    def attributes(self) -> dict[str, float]:
        return {"scale": self.K**-0.5, "window": 0}

    @property
    def widths(self) -> str:
        """Shape of a row, for the label."""
        return f"D {self.D:,}"

    @property
    def label(self) -> str:
        kind = "histories of a search" if self.shared else "histories apart"
        return f"B {self.B}, M {self.M}, H {self.H}, {self.widths}, T {self.T}, {kind}"

    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        rows, newest = torch.arange(self.R, device=self.device), self._newest(inputs["lengths"])
        kept = [inputs[name][rows, :, newest].reshape(-1).double() for name in self.caches]
        return torch.cat([outputs["output"].double().reshape(-1), *kept])

    def history(self, seed: int, odd: bool) -> Tensors:
        """``ancestry`` int32 [B, M, T]: every beam its own history, or, ``shared``, as a search makes it: at each step
        each beam continues a random one. ``lengths`` int32 [B]: T, or T - b modulo T.
        """
        B, M, T = self.B, self.M, self.T
        own = torch.arange(M, dtype=torch.int32)
        ancestry = own[:, None].expand(M, T).repeat(B, 1, 1)
        generator = torch.Generator().manual_seed(seed)
        for t in range(T) if self.shared else ():
            parents = torch.randint(M, (B, M, 1), generator=generator)
            ancestry[..., :t] = ancestry[..., :t].gather(1, parents.expand(B, M, t))
        shorter = torch.arange(B, device=self.device) % T if odd else 0
        lengths = (torch.full((B,), T, device=self.device) - shorter).int()
        return {"ancestry": ancestry.to(self.device), "lengths": lengths}

    def rows_named(self, ancestry: torch.Tensor) -> int:
        """Different (row, position) pairs that some beam's history names, but for the newest position, whose rows are
        inputs. All samples have the full length."""
        return int(torch.stack([(ancestry[..., :-1] == m).any(1) for m in range(self.M)]).sum())

    def gathered(self, inputs: Tensors, cache: str, new: torch.Tensor) -> torch.Tensor:
        """Each row's own history [R, T, G, K] out of a cache [R, G, T_max, K], after ``new`` [R, G K] is written at its
        newest position."""
        rows, kept = torch.arange(self.R, device=self.device), inputs[cache]
        kept[rows, :, self._newest(inputs["lengths"])] = new.view(self.R, kept.shape[1], kept.shape[3])
        first = (rows // self.M * self.M)[:, None]
        ancestry = first + inputs["ancestry"].view(self.R, self.T)
        return kept[ancestry, :, torch.arange(self.T, device=self.device)]

    def counted(self, inputs: Tensors) -> torch.Tensor:
        """bool [R, 1, T]."""
        inside = torch.arange(self.T, device=self.device) < inputs["lengths"][:, None]
        return inside.repeat_interleave(self.M, 0)[:, None]

    def _newest(self, lengths: torch.Tensor) -> torch.Tensor:
        return (lengths.long() - 1).repeat_interleave(self.M)


@dataclass(frozen=True)
class BeamWork(_HistoryWork):
    """BeamAttention: self-attention over a cache that never moves, T positions of T_max.

    Bytes: the different rows of keys and values that histories name, ancestry, what is projected [R, 3 H K], the new
    rows written and the outputs. FLOPs: 4 R H T K.
    """

    operator = "BeamAttention"
    floats = ("projected", "key_cache", "value_cache")
    caches = ("key_cache", "value_cache")

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator, cache = self.generator(seed), (self.R, self.H, self.T_max, self.K)
        shapes = {"projected": (self.R, 3 * self.D), "key_cache": cache, "value_cache": cache}
        numbers = {name: self.numbers(generator, *shape) for name, shape in shapes.items()}
        return {**numbers, **self.history(seed, odd)}

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"output": self.unset(self.R, self.D), **{f"{name}_out": inputs[name] for name in self.caches}}

    def peers(self) -> dict[str, Peer]:
        return {"gather, two GEMMs and softmax": self._products, "gather, SDPA": self._sdpa}

    def _parts(self, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [R, H, 1, K], keys and values [R, H, T, K]."""
        query, *new = inputs["projected"].chunk(3, dim=1)
        keys, values = (self.gathered(inputs, *pair).transpose(1, 2) for pair in zip(self.caches, new, strict=True))
        return query.reshape(-1, self.H, 1, self.K), keys, values

    def _products(self, inputs: Tensors) -> Tensors:
        query, keys, values = self._parts(inputs)
        scores = query @ keys.mT * self.attributes["scale"] + _added(self.counted(inputs), keys.dtype)[:, None]
        return {"output": (scores.softmax(-1) @ values).flatten(1)}

    def _sdpa(self, inputs: Tensors) -> Tensors:
        query, keys, values = self._parts(inputs)
        mask, scale = self.counted(inputs)[:, None], self.attributes["scale"]
        return {"output": scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale).flatten(1)}

    def bytes_moved(self, inputs: Tensors) -> int:
        D, R, size = self.D, self.R, self.dtype.itemsize
        return 2 * self.rows_named(inputs["ancestry"]) * D * size + 4 * R * self.T + R * D * size * (3 + 2 + 1)

    def flops(self, inputs: Tensors) -> int:
        return 4 * self.R * self.T * self.D


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
        generator, G, K = self.generator(seed), self.G, self.K
        shapes = {"query": (self.R, self.D), "row": (self.R, G * K), "cache": (self.R, G, self.T_max, K)}
        numbers = {name: self.numbers(generator, *shape) for name, shape in shapes.items()}
        return {**numbers, **self.history(seed, odd)}

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"output": self.unset(self.R, self.D * self.G), "cache_out": inputs["cache"]}

    def peers(self) -> dict[str, Peer]:
        return {"gather, two GEMMs and softmax": self._products}

    def _products(self, inputs: Tensors) -> Tensors:
        rows = self.gathered(inputs, "cache", inputs["row"])  # [R, T, G, K]
        query = inputs["query"].view(self.R, self.G, self.H // self.G, self.K)
        scores = (query @ rows.permute(0, 2, 3, 1)).flatten(1, 2) * self.attributes["scale"]  # [R, H, T]
        scores = scores + _added(self.counted(inputs), rows.dtype)
        return {"output": torch.bmm(scores.softmax(-1), rows.flatten(2)).flatten(1)}

    def bytes_moved(self, inputs: Tensors) -> int:
        width = self.G * self.K
        rows = self.rows_named(inputs["ancestry"]) * width + self.R * (self.D + 2 * width + self.H * width)
        return rows * self.dtype.itemsize + 4 * self.R * self.T

    def flops(self, inputs: Tensors) -> int:
        return 2 * self.R * self.H * self.T * (self.K + self.G * self.K)
