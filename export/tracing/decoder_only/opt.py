"""OPT's layers over states [B, T, D] throughout; transformers runs their feed-forward part over [B T, D]."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from torch import Tensor
from transformers.models.opt.modeling_opt import OPTDecoderLayer

__all__ = ["states_by_position"]


def states_by_position() -> Any:
    """Context in which the layers of an OPT keep the axis of positions."""
    return patch.object(OPTDecoderLayer, "forward", _forward)


def _forward(self: Any, hidden_states: Tensor, **attention: Any) -> Tensor:
    """`OPTDecoderLayer.forward`, [B, T, D] to [B, T, D]."""
    normalised = self.self_attn_layer_norm(hidden_states) if self.do_layer_norm_before else hidden_states
    states = hidden_states + self.self_attn(hidden_states=normalised, **attention)[0]
    if not self.do_layer_norm_before:
        states = self.self_attn_layer_norm(states)
    normalised = self.final_layer_norm(states) if self.do_layer_norm_before else states
    states = states + self.fc2(self.activation_fn(self.fc1(normalised)))
    result: Tensor = states if self.do_layer_norm_before else self.final_layer_norm(states)
    return result
