"""NGramBlock and BeamTopK at one size each, next to their counterparts in transformers and PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tools.gpu._kernels.work import Peer, Tensors, Work

__all__ = ["NGramWork", "TopKWork", "TrieTopKWork"]

SECTOR_BYTES = 32
"""The least that a write of one number moves."""


@dataclass(frozen=True)
class NGramWork(Work):
    """NGramBlock in place on B rows: scores [B, vocabulary], T tokens each from so few that about one n-gram repeats.

    Bytes: every token is read once, 8 bytes each, and the lengths; of the scores only what is blocked is touched, a
    sector of 32 bytes each. No FLOPs. The class of transformers has no lengths and returns new scores, so it also
    reads and writes them all.
    """

    T: int
    vocabulary: int
    n: int

    operator = "NGramBlock"
    floats = ("scores",)

    @property
    def label(self) -> str:
        return f"{self.B:,} rows x {self.T:,} tokens, vocabulary {self.vocabulary:,}"

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator = self.generator(seed)
        ids = min(self.vocabulary, math.ceil(self.T ** (1 / max(1, self.n - 1))))
        shorter = torch.arange(self.B, device=self.device) % self.T if odd else 0
        return {
            "scores": self.numbers(generator, self.B, self.vocabulary),
            "history": torch.randint(ids, (self.B, self.T), generator=generator, device=self.device),
            "lengths": (torch.full((self.B,), self.T, device=self.device) - shorter).int(),
            "ngram_size": torch.tensor(self.n, device=self.device),
        }

    def outputs(self, inputs: Tensors) -> Tensors:
        return {"blocked": inputs["scores"]}

    def peers(self) -> dict[str, Peer]:
        return {"PyTorch, in place": self._in_place, "transformers' NoRepeatNGramLogitsProcessor": self._transformers()}

    def _in_place(self, inputs: Tensors) -> Tensors:
        """The least of the score and the bans of each n-gram that ends at a token: -inf, or none."""
        history, lengths = inputs["history"], inputs["lengths"].long()[:, None]
        newest = lengths - self.n + 1 + torch.arange(self.n - 1, device=self.device)
        suffix = history.gather(1, newest.clamp(min=0))
        windows = history.unfold(1, self.n, 1)
        ends = torch.arange(self.n - 1, self.T, device=self.device)
        repeats = (windows[..., :-1] == suffix[:, None]).all(-1) & (ends < lengths) & (lengths >= self.n)
        says = torch.zeros(repeats.shape, dtype=inputs["scores"].dtype, device=self.device)
        says.fill_(math.inf).masked_fill_(repeats, -math.inf)
        return {"blocked": inputs["scores"].scatter_reduce_(1, windows[..., -1], says, "amin")}

    def _transformers(self) -> Peer:
        from transformers import NoRepeatNGramLogitsProcessor

        processor: Any = NoRepeatNGramLogitsProcessor(self.n)
        return lambda inputs: {"blocked": processor(inputs["history"], inputs["scores"])}

    def bytes_moved(self, inputs: Tensors) -> int:
        blocked = self._in_place({**inputs, "scores": inputs["scores"].clone()})["blocked"]
        return self.B * (8 * self.T + 4) + SECTOR_BYTES * int(torch.isneginf(blocked).sum())


@dataclass(frozen=True)
class TopKWork(Work):
    """BeamTopK with nothing blocked: the best 2 M of the M x vocabulary continuations of a sample.

    Bytes: the logits once, and 2 M candidates a sample, of 20 bytes. No FLOPs of matrix products.
    """

    M: int
    T: int
    vocabulary: int

    operator = "BeamTopK"
    floats = ("logits",)

    @property
    def label(self) -> str:
        return f"B {self.B}, M {self.M}, vocabulary {self.vocabulary:,}"

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        generator, R = self.generator(seed), self.B * self.M

        def scalar(value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(value, dtype=dtype, device=self.device)

        return {
            "logits": self.numbers(generator, R, self.vocabulary) * 3,
            "beam_scores": torch.randn(self.B, self.M, generator=generator, device=self.device),
            "history": torch.randint(self.vocabulary, (R, self.T), generator=generator, device=self.device),
            "lengths": torch.full((self.B,), self.T, dtype=torch.int32, device=self.device),
            "banned": torch.zeros(R, 0, dtype=torch.int64, device=self.device),
            "normalize": scalar(True, torch.bool),
            "repetition_penalty": scalar(1, torch.float32),
            "no_repeat_ngram_size": scalar(0, torch.int64),
        }

    def outputs(self, inputs: Tensors) -> Tensors:
        names = {"scores": torch.float32, "beams": torch.int64, "tokens": torch.int64}
        return {name: self.unset(self.B, 2 * self.M, dtype=dtype) for name, dtype in names.items()}

    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        """The scores, and what the named candidates are worth: NaN if one is named twice, or does not exist."""
        beams, tokens = outputs["beams"], outputs["tokens"]
        exists = (beams >= 0) & (beams < self.M) & (tokens >= 0) & (tokens < self.vocabulary)
        which = torch.where(exists, beams * self.vocabulary + tokens, -1)
        ordered = which.sort(dim=1).values
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(1, keepdim=True)
        worth = self._total(inputs, torch.float64).gather(1, which.clamp(min=0))
        return torch.stack([outputs["scores"].double(), worth.masked_fill(~exists | twice, math.nan)])

    def _total(self, inputs: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """Scores of every continuation, [B, M vocabulary]."""
        scores = inputs["logits"].to(dtype).log_softmax(-1).view(self.B, self.M, self.vocabulary)
        return (scores + inputs["beam_scores"].to(dtype)[..., None]).flatten(1)

    def peers(self) -> dict[str, Peer]:
        return {"PyTorch, log_softmax and topk": self._topk}

    def _topk(self, inputs: Tensors) -> Tensors:
        total = self._total(inputs, inputs["beam_scores"].dtype)  # float32, as transformers has it
        scores, which = total.topk(2 * self.M, dim=1)
        return {"scores": scores, "beams": which // self.vocabulary, "tokens": which % self.vocabulary}

    def bytes_moved(self, inputs: Tensors) -> int:
        return self.B * self.M * (self.vocabulary * self.dtype.itemsize + 2 * 20)


@dataclass(frozen=True)
class TrieTopKWork(TopKWork):
    """`TopKWork` whose rows are each at a node of a trie that has ``children``, at least two.

    Bytes: those too, of 4 bytes each.
    """

    children: int

    @property
    def label(self) -> str:
        return f"{super().label}, {self.children:,} children of a trie's node"

    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        """Row r is at node r + 1, whose children are random tokens; the nodes behind have none."""
        R = self.B * self.M
        order = torch.rand(R, self.vocabulary, generator=self.generator(seed + 1), device=self.device).argsort(1)
        tokens = order[:, : self.children].sort(1).values.int().flatten()
        node = torch.arange(len(tokens) + 3, device=self.device)
        return {
            **super().inputs(seed, odd=odd),
            "trie_offsets": ((node - 1) * self.children).clamp(0, len(tokens)).int(),
            "trie_tokens": tokens,
            "trie_nodes": node[1 : R + 1].int(),
        }

    def _total(self, inputs: Tensors, dtype: torch.dtype) -> torch.Tensor:
        R, tokens = self.B * self.M, inputs["trie_tokens"].long()
        out = torch.full((R, self.vocabulary), -math.inf, dtype=dtype, device=self.device)
        out.scatter_(1, tokens.view(R, self.children), 0)
        return super()._total(inputs, dtype) + out.view(self.B, -1)

    def bytes_moved(self, inputs: Tensors) -> int:
        return super().bytes_moved(inputs) + 4 * self.B * self.M * self.children
