"""Decoder-only families and variants to build TensorRT engines of."""

from __future__ import annotations

from support.causal_checkpoints import CAUSAL_CLASSES
from support.causal_runs import VARIANTS

CAUSAL = [(family, variant) for family in CAUSAL_CLASSES for variant in VARIANTS.get(family, ("dedup",))]
