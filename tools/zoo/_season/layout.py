"""The weights of a checkpoint that one change touches together, by the names of each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "Attention", "FeedForward", "Layout", "Norm", "Residual"]


@dataclass(frozen=True)
class Norm:
    """A norm whose output these products alone read."""

    name: str
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Attention:
    """An attention: ``heads`` heads of queries over ``groups`` heads of keys and values.

    ``part`` is "source" for an attention over what the encoder gives, "encoder" inside it, else "generated".
    """

    query: str
    key: str
    value: str
    out: str
    heads: int
    groups: int
    part: str
    rotary: bool = False


@dataclass(frozen=True)
class FeedForward:
    """The products around an activation: ``down(activation(up))``, or with a gate ``down(activation(gate) * up)``."""

    up: str
    down: str
    gate: str | None
    activation: str

    @property
    def scales(self) -> bool:
        """True if a positive scale of the rows of ``up`` comes through to ``down``."""
        return self.gate is not None or self.activation == "relu"


@dataclass(frozen=True)
class Residual:
    """The decoder's residual stream, if the logits share the embedding's matrix.

    ``tables`` [tokens, D] and ``writers`` add to the stream, ``norms`` read it, and ``last`` does for the logits.
    """

    tables: tuple[str, ...]
    writers: tuple[str, ...]
    norms: tuple[str, ...]
    last: str


@dataclass(frozen=True)
class Layout:
    """All of it for one checkpoint; ``residual`` is None if no channel of the residual stream can be rescaled."""

    norms: tuple[Norm, ...]
    attentions: tuple[Attention, ...]
    feed_forwards: tuple[FeedForward, ...]
    residual: Residual | None


def _llama(config: Mapping[str, Any]) -> Layout:
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    norms, attentions, feed_forwards = [], [], []
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        query, key, value, out = (f"{name}.self_attn.{part}_proj" for part in "qkvo")
        gate, up, down = (f"{name}.mlp.{part}_proj" for part in ("gate", "up", "down"))
        norms += [Norm(f"{name}.input_layernorm", (query, key, value))]
        norms += [Norm(f"{name}.post_attention_layernorm", (gate, up))]
        attentions += [Attention(query, key, value, out, heads, groups, "generated", rotary=True)]
        feed_forwards += [FeedForward(up, down, gate, config["hidden_act"])]
    tied = config.get("tie_word_embeddings", False)
    writers = (*(each.out for each in attentions), *(each.down for each in feed_forwards))
    residual = Residual(("model.embed_tokens",), writers, tuple(norm.name for norm in norms), "model.norm")
    if not tied:
        norms += [Norm("model.norm", ("lm_head",))]
    return Layout(tuple(norms), tuple(attentions), tuple(feed_forwards), residual if tied else None)


def _halves(config: Mapping[str, Any]) -> tuple[list[Attention], list[FeedForward]]:
    """Attentions and feed-forward layers of a model with BART's names."""
    attentions, feed_forwards = [], []
    for half in ("encoder", "decoder"):
        kinds = {"self_attn": "encoder"} if half == "encoder" else {"self_attn": "generated", "encoder_attn": "source"}
        heads = config[f"{half}_attention_heads"]
        for layer in range(config[f"{half}_layers"]):
            name = f"model.{half}.layers.{layer}"
            for kind, part in kinds.items():
                query, key, value, out = (f"{name}.{kind}.{weight}_proj" for weight in ("q", "k", "v", "out"))
                attentions += [Attention(query, key, value, out, heads, heads, part)]
            feed_forwards += [FeedForward(f"{name}.fc1", f"{name}.fc2", None, config["activation_function"])]
    return attentions, feed_forwards


def _source_readers(attentions: list[Attention]) -> tuple[str, ...]:
    return tuple(name for each in attentions if each.part == "source" for name in (each.key, each.value))


def _bart(config: Mapping[str, Any]) -> Layout:
    """Norms stand behind the sums, so that the sums read them too: but for the last one of the encoder."""
    attentions, feed_forwards = _halves(config)
    last = f"model.encoder.layers.{config['encoder_layers'] - 1}.final_layer_norm"
    return Layout((Norm(last, _source_readers(attentions)),), tuple(attentions), tuple(feed_forwards), None)


def _whisper(config: Mapping[str, Any]) -> Layout:
    """Norms stand in front of the products."""
    attentions, feed_forwards = _halves(config)
    norms = [Norm("model.encoder.layer_norm", _source_readers(attentions))]
    for each in attentions:
        read = (each.query,) if each.part == "source" else (each.query, each.key, each.value)
        norms += [Norm(f"{each.query.rpartition('.')[0]}_layer_norm", read)]
    norms += [Norm(f"{each.up.rpartition('.')[0]}.final_layer_norm", (each.up,)) for each in feed_forwards]
    decoder = "model.decoder."
    writers = (*(each.out for each in attentions), *(each.down for each in feed_forwards))
    names = (norm.name for norm in norms)
    decoder = "model.decoder."
    residual = Residual(
        (f"{decoder}embed_tokens", f"{decoder}embed_positions"),
        tuple(name for name in writers if name.startswith(decoder)),
        tuple(name for name in names if name.startswith(decoder)),
        f"{decoder}layer_norm",
    )
    return Layout(tuple(norms), tuple(attentions), tuple(feed_forwards), residual)


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Layout]] = {
    "llama": _llama,
    "whisper": _whisper,
    "bart": _bart,
    "marian": _bart,
}
"""The layout of a checkpoint by the ``model_type`` of its config.json."""
