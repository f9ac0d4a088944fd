"""The decoder-only architecture of most transformers models: embeddings, layers of self-attention, a head."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import Family, WeightNumbers, activation_errors, head_errors, size_errors
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

__all__ = ["Causal", "cap_errors", "rope_errors"]

LONGROPE = ("longrope", "su")
"""Names of the kind of RoPE that has other angles beyond the length that the model was first trained with."""
LENGTH_DEPENDENT = ("dynamic", *LONGROPE)
"""Kinds of RoPE whose angles depend on the length of the sequence."""


@dataclass(frozen=True, kw_only=True)
class Causal(Family):
    """A model of ``base_model`` and ``lm_head``, whose attention goes through transformers' attention interface.

    The fields up to ``activation`` are names of the config's fields.
    """

    width: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    positions: str = "max_position_embeddings"
    activation: str = "hidden_act"
    """empty if the family has a single one"""
    rotary: bool = True
    alibi: bool = False
    """positions are biases of the scores by the position of the key (ALiBi)"""
    longest: int | None = None
    """positions if the config does not give their number"""
    key_norm: bool = False
    inner: str = "intermediate_size"
    """the config's field of the width of the feed-forward part; 4 D if the value is None"""
    gated: bool = True
    """the feed-forward part has three matrices, not two"""
    must_be_off: tuple[str, ...] = ()
    """the config's fields that no cache supports"""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        may_be_none = ("head_dim", self.inner, *((self.positions,) if self.longest is not None else ()))
        given = [name for name in may_be_none if name and getattr(config, name, None) is not None]
        names = (self.width, self.layers, self.heads, self.positions, "vocab_size")
        names = (*(name for name in names if name not in may_be_none), *given)
        errors = list(size_errors(config, names))
        yield from errors
        if errors:
            return
        H, G = getattr(config, self.heads), self.key_heads(config)
        if getattr(config, "head_dim", None) is None:
            yield from head_errors(config, self.width, self.heads)
        if not isinstance(G, int) or G < 1 or H % G:
            yield f"{self.heads} {H} is not divisible by the {G!r} key heads; correct one of them"
        if (count := self.length(config)) < 3:
            yield f"{self.positions} is {count}; expected 3 at least, for prompts and new tokens"

    def config_errors(self, config: Any) -> Iterator[str]:
        errors = list(self.sizes_errors(config))
        yield from errors
        if errors:
            return
        window = getattr(config, "sliding_window", None)
        if window is not None and not (isinstance(window, int) and 2 <= window < 2**31):  # of 1, transformers fails
            yield f"sliding_window is {reprlib.repr(window)}; expected a whole number from 2 to {2**31 - 1:,}, or none"
        if self.activation:
            yield from activation_errors(config, self.activation)
        if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
            yield f"cross-attention is switched on; expected {self.architecture} alone"
        if self.rotary:
            sizes = self.sizes(config)
            for parameters in self.rope_parameters(config):
                yield from rope_errors(parameters, limited=True, head_dim=sizes.K if sizes.rotary else None)
        for name in self.must_be_off:
            if getattr(config, name):
                yield f"{name} is {getattr(config, name)!r}; expected none: no cache supports it"

    def rope_parameters(self, config: Any) -> tuple[Any, ...]:
        """The config's settings of rotary positions: a dict for each kind of layer, without other values."""
        found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
        if not isinstance(found, dict):
            return ()
        by_type = {kind: given for kind, given in sorted(found.items()) if isinstance(given, dict)}
        if not by_type:
            return (found,)
        kinds = getattr(config, "layer_types", None)
        return tuple(given for kind, given in by_type.items() if not isinstance(kinds, list) or kind in kinds)

    def length(self, config: Any) -> int:
        """Positions that a sequence has at most.

        Beyond some length, RoPE of the kinds ``dynamic`` and ``longrope`` has angles that depend on the length of each
        run, and cached keys would keep theirs. Up to that length, which is the bundle's, all runs share the angles.
        """
        count = getattr(config, self.positions, None)
        longest = int(count or self.longest or 0)
        for parameters in self.rope_parameters(config):
            original = getattr(config, "original_max_position_embeddings", None)
            original = original or parameters.get("original_max_position_embeddings")
            if rope_kind(parameters) in LONGROPE and isinstance(original, int):
                longest = min(longest, original)
        return longest

    def key_bias(self, sizes: Sizes) -> Any:
        """Biases by the position of the key, a torch tensor float32 [H, sizes.max_target]; None without biases."""
        return None

    def key_heads(self, config: Any) -> Any:
        """The number of key heads G, unchecked."""
        return getattr(config, "num_key_value_heads", None) or getattr(config, self.heads)

    def sizes(self, config: Any) -> Sizes:
        D, H = int(getattr(config, self.width)), int(getattr(config, self.heads))
        K = int(getattr(config, "head_dim", None) or D // H)
        positions = self.length(config)
        return Sizes(
            D=D,
            H=H,
            G=int(self.key_heads(config)),
            K=K,
            V=K,
            L=int(getattr(config, self.layers)),
            vocabulary=int(config.vocab_size),
            source_vocabulary=int(config.vocab_size),
            max_source=positions - 1,
            max_target=positions,
            decoder_only=True,
            rotary=self.rotary,
            key_norm=self.key_norm,
        )

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        D, inner = sizes.D, int(getattr(config, self.inner, None) or 4 * sizes.D)
        keys_and_values = D * sizes.G * (sizes.K + sizes.V)
        layer = D * sizes.H * (sizes.K + sizes.V) + keys_and_values + (3 if self.gated else 2) * D * inner
        head = D * sizes.vocabulary
        total = sizes.L * layer + head
        if not getattr(config, "tie_word_embeddings", True):
            total += head
        if not self.rotary and not self.alibi:
            total += D * sizes.max_target
        return WeightNumbers(total, WeightCounts(sizes.L * layer, sizes.L * layer + head))

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.causal import trace_causal

        with self.attention_interface(model):
            return trace_causal(model, sizes, self.key_bias(sizes))


def rope_kind(parameters: dict[str, Any]) -> Any:
    """The kind of RoPE, unchecked."""
    return parameters.get("rope_type", parameters.get("type", "default"))


def rope_errors(parameters: dict[str, Any], *, limited: bool = False, head_dim: int | None = None) -> Iterator[str]:
    """Errors of a config's rope_parameters.

    ``limited``: no sequence is longer than the one beyond which angles depend on its length (``Causal.length``).
    ``head_dim``: K if transformers rotates pairs of numbers half a head apart, for which K must be even.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = rope_kind(parameters)
    known = ("default", *ROPE_INIT_FUNCTIONS)
    if not isinstance(kind, str) or kind not in known:
        yield f"rope_type is {kind!r}; expected one of {', '.join(sorted(known))}"
    elif not limited and kind in LENGTH_DEPENDENT:
        yield f"rope_type {kind!r} changes its angles with the length; expected a kind whose angles do not"
    elif kind in LONGROPE:
        for name in ("short_factor", "long_factor"):
            factors = parameters.get(name)
            if not isinstance(factors, list) or not all(map(_is_above_zero, factors)):
                yield f"{name} of rope_parameters is {reprlib.repr(factors)}; expected a list of numbers above 0"
    for name in ("rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"):
        value = parameters.get(name, 1)
        if value is None and name == "factor" and kind in LONGROPE:
            continue  # by the lengths
        if not _is_above_zero(value) or (name == "partial_rotary_factor" and value > 1):
            most = ", at most 1" if name == "partial_rotary_factor" else ""
            yield f"{name} of rope_parameters is {value!r}; expected a number above 0{most}"
            return
    share = parameters.get("partial_rotary_factor", 1)
    if head_dim is not None and ((rotated := int(head_dim * share)) % 2 or not rotated):
        yield (
            f"partial_rotary_factor {share} rotates {rotated} of the {head_dim} numbers of a head, which are rotated "
            "in pairs; expected an even number of them, 2 at least"
        )


def cap_errors(config: Any) -> Iterator[str]:
    """Clauses for a scale, or caps of the scores and logits, that are not numbers above 0; caps may be missing."""
    for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
        value = getattr(config, name)
        if not _is_above_zero(value) and (value is not None or name == "query_pre_attn_scalar"):
            yield f"{name} is {value!r}; expected a number above 0"


def _is_above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
