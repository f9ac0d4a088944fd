"""Checks of the token ids that a caller gives: one source, or a batch with its attention mask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, mask_of_padding, unbroken
from tightbeam.deploy.bundle.manifest import ModelSizes
from tightbeam.deploy.errors import InputError, first_line
from tightbeam.deploy.generation.options import GenerationOptions

__all__ = [
    "as_array",
    "check_batch",
    "check_ids",
    "checked_mask",
    "finite_float32",
    "longest_source",
    "other_than_integers",
]


def longest_source(sizes: ModelSizes) -> str:
    """Return the length of a model's longest source, as a phrase for error messages."""
    if sizes.decoder_only:
        return f"the {sizes.max_source} that a prompt may have, since one of {sizes.max_target} is for a new token"
    return f"the model's {sizes.max_source} positions"


def check_ids(tokens: Sequence[int], sizes: ModelSizes) -> None:
    """Check token ids as one source, or as the prompt of a decoder-only model.

    Parameters
    ----------
    tokens : sequence of int
    sizes : ModelSizes

    Raises
    ------
    InputError
        There are no tokens, too many, one outside the vocabulary, or something else.
    """
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence | np.ndarray):
        raise InputError(f"the token ids are {type(tokens).__name__}, expected integers [N]; pass a list of them")
    if len(tokens) > sizes.max_source:  # before any of them is looked at
        raise InputError(f"{len(tokens)} token ids are more than {longest_source(sizes)}; shorten them")
    if wrong := other_than_integers(tokens):
        fix = "pass one text, not a list" if isinstance(wrong[0], str) else "pass a list of them"
        raise InputError(f"the token ids hold {type(wrong[0]).__name__}, expected integers [N]; {fix}")
    if not len(tokens):
        raise InputError("no token ids; expected at least one")
    outside = next((token for token in tokens if not 0 <= token < sizes.source_vocabulary), None)
    if outside is not None:
        raise InputError(f"token id {outside} is outside the vocabulary; expected 0 to {sizes.source_vocabulary - 1}")


def other_than_integers(values: Iterable[Any]) -> list[Any]:
    """Return the values that are not integers; a bool is not one here."""
    return [each for each in values if isinstance(each, bool) or not isinstance(each, Integral)]


def check_batch(
    input_ids: Array | Sequence[Sequence[int]],
    attention_mask: Array | None,
    options: GenerationOptions,
    sizes: ModelSizes,
) -> tuple[Array, Array]:
    """Check a batch of token ids and its mask.

    Parameters
    ----------
    input_ids : integers [B, N], or sequence of B sequences of N int
    attention_mask : integers [B, N] or None
        None for the mask that transformers assumes.
    options : GenerationOptions
        The settings, for the pad token.
    sizes : ModelSizes

    Returns
    -------
    input_ids : int64 [B, N]
    attention_mask : int64 [B, N]

    Raises
    ------
    InputError
        A shape, a type or a value is wrong.
    """
    ids = as_array("input_ids", input_ids)
    _check_source(ids, sizes)
    return np.ascontiguousarray(ids, dtype=np.int64), checked_mask(attention_mask, ids, options, sizes)


def checked_mask(attention_mask: Any, ids: Array, options: GenerationOptions, sizes: ModelSizes) -> Array:
    """Return the mask int64 [B, N] of checked ids.

    Parameters
    ----------
    attention_mask : integers [B, N] or None
        None for the mask that transformers assumes.
    ids : integers [B, N]
    options : GenerationOptions
        The settings, for the pad token.
    sizes : ModelSizes

    Raises
    ------
    InputError
        The mask has another shape or other values, leaves a row empty, or has a gap in a prompt.
    """
    if attention_mask is not None:
        mask = as_array("attention_mask", attention_mask)
    elif sizes.decoder_only:
        mask = mask_of_padding(ids, options.pad_token_id, options.eos_token_ids)
    else:
        mask = np.ones_like(ids)
    _check_mask(mask, ids, in_one_piece=sizes.decoder_only)
    return np.ascontiguousarray(mask, dtype=np.int64)


def _check_source(ids: Array, sizes: ModelSizes) -> None:
    if ids.size == 0:
        raise InputError(f"input_ids is empty, {list(ids.shape)}; expected at least one sample of one token")
    if ids.dtype.kind in "US":
        raise InputError("input_ids is text, expected integers [B, N]; call Runner.generate_text for texts")
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(
            f"input_ids is {ids.dtype} {list(ids.shape)}, expected integers [B, N]; "
            "pass a row of token ids for each sample"
        )
    if ids.shape[1] > sizes.max_source:
        raise InputError(
            f"input_ids has {ids.shape[1]} positions, more than {longest_source(sizes)}; shorten the source"
        )
    outside = ids[(ids < 0) | (ids >= sizes.source_vocabulary)]
    if outside.size:
        raise InputError(
            f"input_ids holds {int(outside[0])}, which is outside the vocabulary; "
            f"expected 0 to {sizes.source_vocabulary - 1}"
        )


def _check_mask(mask: Array, ids: Array, *, in_one_piece: bool) -> None:
    if mask.shape != ids.shape:
        raise InputError(
            f"attention_mask is {list(mask.shape)}, expected {list(ids.shape)} like input_ids; "
            "pass one value for each token"
        )
    if not ((mask == 0) | (mask == 1)).all():
        raise InputError("attention_mask holds other values than 0 and 1; pass 0 at padding and 1 elsewhere")
    empty = np.flatnonzero(~mask.astype(bool).any(axis=1))
    if empty.size:
        raise InputError(
            f"sample {int(empty[0])} has no token that attention_mask lets through; expected a 1 in every row"
        )
    if in_one_piece and not (whole := unbroken(mask.astype(np.int64))).all():
        sample = int(np.argmin(whole))
        raise InputError(
            f"attention_mask has a gap in sample {sample}; expected a prompt in one piece, padded on a side"
        )


def as_array(name: str, value: Any) -> Array:
    """Return ``value`` as an array. Raises InputError, which calls it ``name``, if its rows have different lengths, or
    if numpy cannot read it."""
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths, expected [B, N]; pad them and mask that") from None
    except Exception as error:  # a torch tensor on a GPU, or with a gradient
        raise InputError(f"{name} is {type(value).__name__}, expected an array ({first_line(error)})") from None


def finite_float32(name: str, values: Array) -> npt.NDArray[np.float32]:
    """Return floats as contiguous float32. Raises InputError for other types, and for values that are not finite in
    float32."""
    if np.issubdtype(values.dtype, np.floating):
        with np.errstate(over="ignore"):
            found = np.ascontiguousarray(values, dtype=np.float32)
        if np.isfinite(found).all():
            return found
    raise InputError(f"{name} is {values.dtype}, or holds NaN or infinity; expected finite float32")
