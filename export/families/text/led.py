"""LED (Beltagy et al. 2020), the Longformer of generation: BART whose encoder attends in windows, for 16,384 positions.

A query of the encoder sees the keys within half of its layer's `attention_window`. The first `global_tokens` of each
source have global attention: they see every key by projections of their own, and every query sees them. This is
`model.generate` with a `global_attention_mask` of 1 at these positions; with none, without the mask. The decoder is
BART's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.bart_like import BartLike, bart_errors, bart_sizes_errors, bart_weights
from tightbeam.export.families.base import WeightNumbers, square_sizes
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

POSITIONS = tuple(f"max_{side}_position_embeddings" for side in ("encoder", "decoder"))
NARROWEST = 4
"""transformers cannot run windows of 2."""
WIDEST = 2046
"""About twice as wide as the published models' windows; the bias of a block grows with its square."""


@dataclass(frozen=True, kw_only=True)
class LedLike(BartLike):
    """BART with an encoder over windows."""

    takes_global_tokens: bool = True

    def sizes_errors(self, config: Any) -> Iterator[str]:
        errors = list(bart_sizes_errors(config, ("d_model", "vocab_size", *POSITIONS)))
        yield from errors
        if not errors:
            yield from _window_errors(config)

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from self.sizes_errors(config)
        yield from bart_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        source, target = (int(getattr(config, name)) for name in POSITIONS)
        largest = max(_windows(config))
        return square_sizes(config, source // largest * largest, target)  # transformers pads a source to whole windows

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        own = 3 * int(config.encoder_layers) * sizes.D**2  # queries, keys and values of global attention
        numbers = bart_weights(config, sizes, rows=sum(getattr(config, name) for name in POSITIONS), numbers=own)
        if not self.global_tokens:
            return numbers
        products = WeightCounts(numbers.products.encoder + own, numbers.products.decoder)
        return WeightNumbers(numbers.total, products)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.text.led import attention_interface

        return attention_interface(model)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.text.led import trace_led

        return trace_led(model, sizes, self.global_tokens)


def _windows(config: Any) -> list[Any]:
    given = config.attention_window
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _window_errors(config: Any) -> Iterator[str]:
    """Errors of `attention_window`, an even number for all layers or one for each."""
    windows, layers, positions = _windows(config), int(config.encoder_layers), config.max_encoder_position_embeddings
    if isinstance(config.attention_window, (list, tuple)) and len(windows) != layers:
        yield f"attention_window has {len(windows)} numbers; expected one for each of the {layers} encoder_layers"
        return
    for window in windows:
        whole = isinstance(window, int) and not isinstance(window, bool)
        if not whole or window < NARROWEST or window % 2 or window > WIDEST:
            yield f"attention_window has {window!r}; expected even numbers from {NARROWEST} to {WIDEST}"
            return
    largest = max(windows)
    uneven = [window for window in windows if largest % window]
    if uneven:
        yield (
            f"attention_window has {uneven[0]} and {largest}; transformers pads a source to a multiple of the largest, "
            "which must be a multiple of each"
        )
    if largest > positions:
        yield f"attention_window has {largest}; expected at most max_encoder_position_embeddings, {positions}"


LED = LedLike(
    model_type="led",
    architecture="LEDForConditionalGeneration",
    position_offset=0,
    aliases={name: f"allenai/{name}" for name in ("led-base-16384", "led-large-16384", "led-large-16384-arxiv")},
)
