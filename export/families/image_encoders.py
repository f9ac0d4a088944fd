"""Encoders of images: their sizes by the config, and the numbers in their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import head_errors, size_errors

__all__ = ["ENCODERS", "ImageEncoder", "encoder_weights", "image_size", "positions_of"]

TRANSFORMER_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "num_channels")
COLOURS = 3
"""Channels of an image as it is read; every published encoder takes them."""


@dataclass(frozen=True)
class ImageEncoder:
    """Facts of a kind of encoder that its config alone does not state."""

    errors: Callable[[Any], Iterator[str]]
    """contradictions in its config, one clause each"""
    width: Callable[[Any], int]
    """width of its output"""
    positions: Callable[[Any], int]
    """positions of its output"""
    weights: Callable[[Any], tuple[int, int]]
    """numbers in its products, and in its tables"""


def image_size(config: Any) -> tuple[int, int]:
    """Height and width of the images that an encoder takes, in pixels."""
    return _pair(config.image_size)


def positions_of(config: Any) -> int:
    """Positions of an encoder's output, N."""
    return ENCODERS[config.model_type].positions(config)


def encoder_weights(config: Any) -> tuple[int, int]:
    """Numbers in an encoder's products, and in its tables of positions and first filters."""
    return ENCODERS[config.model_type].weights(config)


def _pair(value: Any) -> tuple[int, int]:
    height, width = value if isinstance(value, list | tuple) else (value, value)
    return int(height), int(width)


def _shape_errors(config: Any) -> Iterator[str]:
    for name in ("image_size", "patch_size"):
        value = getattr(config, name, None)
        numbers = value if isinstance(value, list | tuple) and len(value) == 2 else [value]
        if not all(type(number) is int and 1 <= number < 2**16 for number in numbers):
            yield f"{name} is {value!r}; expected a whole number of pixels, or two, height and width"
            return
    if config.num_channels != COLOURS:
        yield f"num_channels is {config.num_channels!r}; supported are images of {COLOURS} colours"
    if any(patch > size for patch, size in zip(_pair(config.patch_size), _pair(config.image_size), strict=True)):
        yield f"patch_size {config.patch_size} is larger than image_size {config.image_size}; correct one of them"


def _grid(config: Any) -> tuple[int, int]:
    (height, width), (rows, columns) = _pair(config.image_size), _pair(config.patch_size)
    return height // rows, width // columns


def _vit_errors(config: Any) -> Iterator[str]:
    errors = [*size_errors(config, TRANSFORMER_SIZES)]
    errors = errors or [*_shape_errors(config), *head_errors(config, "hidden_size", "num_attention_heads")]
    yield from errors


def _vit(tokens: int) -> ImageEncoder:
    """A ViT with ``tokens`` learned positions before the patches'."""

    def positions(config: Any) -> int:
        rows, columns = _grid(config)
        return rows * columns + tokens

    def weights(config: Any) -> tuple[int, int]:
        D, layers = int(config.hidden_size), int(config.num_hidden_layers)
        rows, columns = _pair(config.patch_size)
        products = layers * (4 * D * D + 2 * D * int(config.intermediate_size))
        # The pooled state is a product that no text reads.
        return products, D * (positions(config) + tokens + rows * columns * int(config.num_channels) + D)

    return ImageEncoder(_vit_errors, lambda config: int(config.hidden_size), positions, weights)


def _swin_errors(config: Any) -> Iterator[str]:
    errors = [*size_errors(config, ("embed_dim", "num_channels", "window_size"))]
    for name in ("depths", "num_heads"):
        value = getattr(config, name, None)
        if not isinstance(value, list | tuple) or not value or not all(type(n) is int and 1 <= n < 1000 for n in value):
            errors.append(f"{name} is {value!r}; expected whole numbers of at least 1, one a stage")
    if not errors and len(config.depths) != len(config.num_heads):
        errors.append(f"depths has {len(config.depths)} stages, num_heads {len(config.num_heads)}; correct one of them")
    for stage, heads in enumerate(() if errors else config.num_heads):
        if (width := config.embed_dim * 2**stage) % heads:
            errors.append(f"stage {stage} is {width} wide, not divisible by its {heads} heads; correct one of them")
    errors = errors or [*_shape_errors(config)]
    yield from errors
    for stage, sides in enumerate(() if errors else _swin_sides(config)):
        if min(sides) < config.window_size:
            yield (
                f"window_size is {config.window_size}, wider than the {sides[0]} x {sides[1]} positions of stage "
                f"{stage}, with which transformers fails; correct window_size or image_size"
            )
            return


def _swin_width(config: Any) -> int:
    """Each stage but the last doubles the width."""
    width: int = config.embed_dim * 2 ** (len(config.depths) - 1)
    return width


def _swin_sides(config: Any) -> Iterator[tuple[int, int]]:
    """Rows and columns of each stage's positions: each but the last merges four into one, its sides rounded up."""
    height, width = _pair(config.image_size)
    rows, columns = _pair(config.patch_size)
    rows, columns = -(-height // rows), -(-width // columns)
    for _ in config.depths:
        yield rows, columns
        rows, columns = -(-rows // 2), -(-columns // 2)


def _swin_positions(config: Any) -> int:
    *_, (rows, columns) = _swin_sides(config)
    return rows * columns


def _swin_weights(config: Any) -> tuple[int, int]:
    rows, columns = _pair(config.patch_size)
    products, tables = 0, rows * columns * int(config.num_channels) * int(config.embed_dim)
    for stage, (depth, heads) in enumerate(zip(config.depths, config.num_heads, strict=True)):
        D = int(config.embed_dim) * 2**stage
        products += depth * (4 * D * D + 2 * D * int(D * config.mlp_ratio))
        tables += depth * heads * (2 * int(config.window_size) - 1) ** 2
        products += 8 * D * D if stage < len(config.depths) - 1 else 0
    return products, tables


ENCODERS = {
    "vit": _vit(1),
    "deit": _vit(2),
    "donut-swin": ImageEncoder(_swin_errors, _swin_width, _swin_positions, _swin_weights),
}
"""Kinds by ``model_type``. ViT has a class token before the patches, DeiT also one for distillation."""
