"""A checkpoint's model in float64, inputs that it makes itself, and how far apart two models are on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from tools.zoo._season.exact import Weights

__all__ = ["Inputs", "difference", "inputs_of", "load", "rows_of"]

SAMPLES, LENGTH = 8, 48


@dataclass(frozen=True)
class Inputs:
    """Inputs of a model by name: a source unless it has no encoder, and tokens [samples, positions] that it drew."""

    named: dict[str, Tensor]

    def tokens_of(self, product: str) -> Tensor | None:
        """The tokens whose rows a product multiplies, one a row; None for sound."""
        half = "input_ids" if "decoder_input_ids" not in self.named or ".encoder." in product else "decoder_input_ids"
        return self.named[half].reshape(-1) if half in self.named else None


def load(config: Mapping[str, Any], weights: Weights) -> Any:
    """Load weights into the model of a config.json, in float64."""
    model_class = getattr(transformers, config["architectures"][0])
    model = model_class(model_class.config_class.from_dict(dict(config))).double().eval()
    unexpected = model.load_state_dict(weights, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"{unexpected[0]} is not a weight of {config['architectures'][0]}; remove it")
    return model


@torch.no_grad()
def inputs_of(model: Any, seed: int) -> Inputs:
    """Draw a random source, if the model has an encoder, and let the model draw the tokens."""
    config = model.config
    torch.manual_seed(seed)
    if not config.is_encoder_decoder:
        tokens = torch.randint(config.vocab_size, (SAMPLES, 1))
        return Inputs({"input_ids": _drawn(tokens, lambda drawn: model(input_ids=drawn).logits)})
    if hasattr(config, "num_mel_bins"):
        shape = SAMPLES, config.num_mel_bins, 2 * config.max_source_positions
        source = {"input_features": torch.randn(shape, dtype=torch.float64)}
    else:
        source = {"input_ids": torch.randint(config.vocab_size, (SAMPLES, LENGTH))}
    states = model.get_encoder()(**source)
    first = torch.full((SAMPLES, 1), config.decoder_start_token_id)
    drawn = _drawn(first, lambda tokens: model(encoder_outputs=states, decoder_input_ids=tokens).logits)
    return Inputs({**source, "decoder_input_ids": drawn})


def _drawn(tokens: Tensor, logits_of: Any) -> Tensor:
    while tokens.shape[1] < LENGTH:
        probabilities = logits_of(tokens)[:, -1].softmax(dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    return tokens


@torch.no_grad()
def rows_of(model: Any, inputs: Inputs, products: Sequence[str]) -> dict[str, Tensor]:
    """The rows [R, X] that products multiply, by their names."""
    rows: dict[str, Tensor] = {}

    def recorder(name: str) -> Any:
        def record(_: Any, given: tuple[Tensor, ...]) -> None:
            rows[name] = given[0].reshape(-1, given[0].shape[-1])

        return record

    modules = dict(model.named_modules())
    hooks = [modules[name].register_forward_pre_hook(recorder(name)) for name in products]
    model(**inputs.named)
    for hook in hooks:
        hook.remove()
    return rows


@torch.no_grad()
def difference(model: Any, other: Any, inputs: Inputs) -> tuple[float, float]:
    """How far two models are apart.

    Returns
    -------
    tuple of float
        Root mean square of the difference of log-probabilities, over that of their deviation from a position's mean;
        and the share of positions whose most likely token differs.
    """
    first, second = (each(**inputs.named).logits.log_softmax(dim=-1) for each in (model, other))
    deviation = (first - first.mean(dim=-1, keepdim=True)).square().mean().sqrt()
    apart = (first - second).square().mean().sqrt() / deviation
    return float(apart), float((first.argmax(dim=-1) != second.argmax(dim=-1)).double().mean())
