"""Decoder-only families and variants to build TensorRT engines of."""

from __future__ import annotations

from support.checkpoints.causal import CAUSAL_CLASSES
from support.references.causal_runs import VARIANTS

CAUSAL = [(family, variant) for family in CAUSAL_CLASSES for variant in VARIANTS.get(family, ("dedup",))]
