"""Families of which ``make test`` runs another one in their place, and ``make slow`` all.

A trace of a family takes seconds. ``make test`` has one family for each kind of attention, of positions, of norm and of
fused projection, chosen so that each module of ``export/families`` and ``export/tracing`` is reached. A new family with
code of its own stays out of this table; one of data alone goes into it if a family that runs has what it has.
"""

from __future__ import annotations

import pytest

__all__ = ["STAND_INS", "is_represented"]

STAND_INS: dict[str, tuple[str, ...]] = {
    # An encoder and a decoder.
    "pegasus": ("m2m_100", "marian"),  # the norm first; sinusoidal positions that are computed
    "mbart": ("m2m_100",),  # the norm first, and a final norm
    "seamless_m4t_v2": ("seamless_m4t",),  # the same text side
    "blenderbot": ("m2m_100",),
    "blenderbot-small": ("bart",),  # without BART's position offset, as Marian's
    "mt5": ("t5", "umt5"),  # T5's biases; a gated feed-forward part
    "canary": ("cohere_asr",),  # its encoder and its layers; positions that are computed
    # A decoder alone.
    "falcon": ("falcon",),  # with more than one key head: test_causal_shapes.py
    "mistral": ("gemma3_text",),  # a window
    "qwen2": ("gpt_neox",),  # a bias that is rotated with its keys
    "qwen3": ("gemma3_text",),  # a norm of each head before the rotation
    "olmo": ("gpt_neox",),  # layer norms; without weights, which are constants in the graph
    "olmo2": ("gemma3_text",),  # a norm before the rotation; over all heads: test_causal_shapes.py
    "olmo3": ("gemma3_text",),  # norms after each branch, and a window in some layers
    "phi3": (
        "gemma3_text",
        "gpt2",
    ),  # a window; queries, keys and values of one product; LongRoPE: test_causal_shapes.py
    "gemma": ("gemma3_text",),  # scaled embeddings, heads wider than the model divided by them
    "smollm3": ("llama",),  # its layers, some of them without the rotation
    "phi": ("gpt_neox",),  # a part of each head rotated, attention beside the feed-forward part, biases
    "stablelm": ("gpt_neox",),  # layer norms, a part of each head rotated
    "granite": ("gemma3_text",),  # other factors on embeddings, scores, branches and logits
    "exaone4": ("gemma3_text", "llama"),  # norms of each head and after each branch, a window; layers without rotation
    "seed_oss": ("gpt_neox", "gemma3_text"),  # a bias that is rotated with its keys; heads wider than the model
    "jais2": ("gpt_neox",),  # layer norms, biases and a plain feed-forward part
    "starcoder2": ("gpt_neox", "gemma3_text"),  # biases and a plain feed-forward part; a window
}
"""The families that stand for another one in ``make test``, and what they share with it."""


def is_represented(item: pytest.Item) -> bool:
    """Return whether a test makes bundles of a family for which others stand, with the family's own sizes.

    A case with a ``shape`` is there for that shape, and says by itself whether it is slow.
    """
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return (
        "bundles" in getattr(item, "fixturenames", ())
        and "shape" not in parameters
        and parameters.get("family") in STAND_INS
    )
