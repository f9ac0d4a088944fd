"""The guard of int8: the error of each quantised product on real rows, and the form that it gets for it.

A product in int8 rounds each row and each column to 255 steps between its largest numbers. One large number among small
ones takes all of the steps, so the error depends on the model. The guard therefore computes each product on the rows
that it multiplies while the model generates, in every form, and compares it with float64. A product that errs more than
allowed keeps 15 bits of its rows, with the same matrix of bytes, and stays float32 if that errs too much as well. All
readers of a matrix, as an embedding and the logits may be, have it in the same bits, the most that one of them needs.

**Matrices of 4 bits** err by ten times as much, evenly over all products, and are for models that bear it: they have a
limit of their own, and the divergence of the whole model decides (``divergence``). A product beyond it has 8 bits.

**The error** is relative, row by row: the root mean square of a row's difference over the root mean square of the exact
row, without bias. The error of the product is the root mean square of its rows' errors; a matrix for each head makes
rows of each head. So each row counts as much as any other, however large its numbers are: the norm that follows makes
rows equal again, and outliers are often in a few rows, whose own numbers are so large that an error over all numbers
would be theirs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tightbeam.deploy.bundle.manifest import QuantizedEntry
from tightbeam.export.accuracy.gptq import Correction, correction, to_int4, to_int8
from tightbeam.export.counts import counted
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import Int4Matrix, nearest
from tightbeam.graph_passes.precision.integers import MOST, SMALLEST, Int8Matrix, quantized_columns
from tightbeam.graph_passes.precision.sites import BITS, FORMS, Site
from tightbeam.plugins.ops._split_rows import STEPS
from tightbeam.plugins.ops.int4_matmul import BLOCK

__all__ = [
    "ALLOWED",
    "Rounded",
    "forms_of",
    "int4_error",
    "is_allowed",
    "limit",
    "measure_products",
    "readers_of",
    "rounded_matrices",
    "same_bits",
    "w8a16_error",
]

ALLOWED = 0.03
"""Largest error of a product in int8, relative to its output: twice the largest usual one. The products of the demo
model err by 0.40 to 1.44 %, products of small random models by 0.5 to 1.2 %, and random weights in BART-large's shapes
by at most 1.6 %: 20 to 50 times as much as in float16. A column that is 500 times as large costs 50 % or more."""
ALLOWED_EMBEDDING = 0.015
"""Largest error of an embedding with one scale for each token, if the width allows blocks. Tokens of published models
err by 1.2 % (SmolLM2-135M, Whisper base), 1.9 % (Gemma 3 270M) and 3.0 % (Whisper tiny.en). In Gemma that alone costs
as much divergence as all products (0.0017 nats); with blocks of 128 numbers a fifth of it."""
ALLOWED_INT4 = 0.2
"""Largest error of a product with a matrix of 4 bits: twice the median of trained models without corrections, which is
9 %."""
BLOCKS = (128, 96, 64, 32)
"""Numbers of a block: the first that divides a column."""
MOST_COLUMNS = 1024
"""Columns of a product, or tokens of an embedding, that are measured, at even distances; each has its own scale."""


@dataclass(frozen=True)
class Rounded:
    """Matrices in integers by the names of the sites that read them.

    Attributes
    ----------
    int8 : dict
        All other products and embeddings, except the products of heads.
    blocks : dict
        With a scale for each block of a column: embeddings that err by more than ``ALLOWED_EMBEDDING`` with one scale
        for each token, since a few large numbers of a token cost its others their bits.
    int4 : dict
        Of those whose rows are a multiple of 32 numbers; empty without int4.
    """

    int8: Mapping[str, Int8Matrix] = field(default_factory=dict)
    blocks: Mapping[str, Int8Matrix] = field(default_factory=dict)
    int4: Mapping[str, Int4Matrix] = field(default_factory=dict)


def rounded_matrices(
    sites: Sequence[Site], rows: Mapping[str, Array], *, in_int4: bool = False, in_blocks: bool = True
) -> Rounded:
    """Round the matrices of products and embeddings to 8 bits, and to 4 bits too if ``in_int4``.

    ``in_blocks``: an embedding may have blocks.

    Parameters
    ----------
    sites, rows
        As of :func:`measure_products`; rows of several products that are one array correct all of them alike.
    """
    int8: dict[str, Int8Matrix] = {}
    blocks: dict[str, Int8Matrix] = {}
    int4: dict[str, Int4Matrix] = {}
    corrections: dict[tuple[int, ...], Correction | None] = {}
    for shared in counted(_by_matrix(sites), "matrices rounded to integers"):
        first, names = shared[0], [site.name for site in shared]
        if first.heads or first.place is not None or any(site.X != first.X for site in shared):
            continue
        given = [rows[name] for name in names if name in rows]
        key = tuple(map(id, given))
        if key not in corrections:
            corrections = {key: correction(given)}  # products that read the same rows stand side by side
        count = _blocks(first) if in_blocks and any(site.rows is None for site in shared) else 1
        (int8 if count == 1 else blocks).update(dict.fromkeys(names, to_int8(first.values, corrections[key], count)))
        if in_int4 and first.X % BLOCK == 0:
            int4 |= dict.fromkeys(names, to_int4(first.values, corrections[key]))
    return Rounded(int8, blocks, int4)


NOT_ROUNDED = Rounded()


def _blocks(site: Site) -> int:
    """Blocks of each column of a matrix that an embedding reads."""
    width = next((width for width in BLOCKS if site.X % width == 0), site.X)
    columns = _some_columns(site.values)
    error = _relative(_nearest(None, columns, MOST), _exact(None, columns))
    return site.X // width if error is not None and error > ALLOWED_EMBEDDING else 1


def measure_products(
    sites: Sequence[Site], rows: Mapping[str, Array], rounded: Rounded = NOT_ROUNDED
) -> tuple[QuantizedEntry, ...]:
    """Measure products and embeddings, and choose the form of each.

    Parameters
    ----------
    sites
        What can be quantised.
    rows
        float32 [rows, X] of each product, by the name of its site; [rows, H X] of the products of H heads.
    rounded
        Matrices in integers; of 8 bits, one that is missing is rounded to the nearest.

    Returns
    -------
    tuple of QuantizedEntry
        One for each site, in order. Sites that share a matrix have it in the same bits, so that it is stored once.
    """
    matrices = counted(_by_matrix(sites), "matrices measured in int8")
    entries = {entry.name: entry for shared in matrices for entry in _measure(shared, rows, rounded)}
    return tuple(entries[site.name] for site in sites)


def readers_of(sites: Sequence[Site]) -> dict[str, list[str]]:
    """By the name of each site, the names of all that read its matrix, itself among them."""
    found: dict[str, list[str]] = {}
    for shared in _by_matrix(sites):
        names = [site.name for site in shared]
        found |= dict.fromkeys(names, names)
    return found


def _by_matrix(sites: Sequence[Site]) -> list[list[Site]]:
    readers: dict[tuple[int, ...], list[Site]] = {}
    for site in sites:
        readers.setdefault(_storage(site), []).append(site)
    return list(readers.values())


def forms_of(entries: Sequence[QuantizedEntry]) -> dict[str, str]:
    """The form of each product by name, as ``quantize`` takes them."""
    return {entry.name: entry.kept for entry in entries}


def limit(form: str) -> float:
    """The largest error that a product may have in a form."""
    return ALLOWED_INT4 if form == "w4a16" else ALLOWED


def is_allowed(form: str, error: float | None) -> bool:
    """True for an error that a product may have in a form."""
    return form == "fp32" or (error is not None and error <= limit(form))


def same_bits(readers: Sequence[Mapping[str, float | None]], least: float = 0) -> list[str]:
    """The cheapest form of each reader of a matrix whose error is allowed, if all have it in the same bits.

    Parameters
    ----------
    readers
        The errors of each by form; forms that were not measured may be missing.
    least
        The fewest bits that they may have.
    """
    while True:
        allowed = [[form for form in FORMS if is_allowed(form, errors.get(form))] for errors in readers]
        forms = [next(form for form in own if BITS[form] >= least) for own in allowed]
        least = max(BITS[form] for form in forms)
        if all(BITS[form] == least for form in forms):
            return forms


def int4_error(rows: Array, matrix: Array) -> float | None:
    """The error of rows [rows, X] times a matrix [X, Y] in 4 bits, or in 8 if 32 does not divide X."""
    if len(matrix) % BLOCK:
        return w8a16_error(rows, matrix)
    matrix = _some_columns(matrix)
    return _relative(rows @ nearest(matrix).values, _exact(rows, matrix))


def w8a16_error(rows: Array, matrix: Array) -> float | None:
    """The error of rows [rows, X] times a matrix [X, Y] in 8 bits, with rows of 16; None if it is NaN or infinite."""
    matrix = _some_columns(matrix)
    return _relative(_wide(rows, matrix), _exact(rows, matrix))


def _measure(readers: Sequence[Site], rows: Mapping[str, Array], rounded: Rounded) -> Iterator[QuantizedEntry]:
    """Measure the readers of one matrix, and choose their forms: "int8" and "w8a16" read the same bytes."""
    parts = [_parts(site, rows.get(site.name)) for site in readers]
    exact = [_outputs(each, _exact) for each in parts]
    name = readers[0].name

    def errors_of(form: _Form, values: Array | None = None) -> list[float | None]:
        """The errors of a form, of ``values`` in place of the matrix."""
        given = [[(x, matrix if values is None else values) for x, matrix in each] for each in parts]
        return [_relative(_outputs(each, form), outputs) for each, outputs in zip(given, exact, strict=True)]

    if name in rounded.int8:
        int8 = rounded.int8[name].columns(_step(readers[0].Y)).values
        errors = {"int8": errors_of(_short, int8), "w8a16": errors_of(_long, int8)}
    else:
        errors = {"int8": errors_of(_quantized), "w8a16": errors_of(_wide)}
    if name in rounded.blocks:
        errors["blocks"] = errors_of(_long, rounded.blocks[name].columns(_step(readers[0].Y)).values)
    if name in rounded.int4:
        errors = {"w4a16": errors_of(_single, _some_columns(rounded.int4[name].values)), **errors}
    fp16, fp32 = errors_of(_half), errors_of(_single)
    own = [{form: found[index] for form, found in errors.items()} for index in range(len(readers))]
    of_blocks = ("int8", "w8a16") if name in rounded.blocks else ()
    able = [{form: error for form, error in each.items() if form not in of_blocks} for each in own]
    kept = same_bits(able)
    alone = [BITS[same_bits([found])[0]] for found in able]
    widest = readers[alone.index(max(alone))].name
    for index, site in enumerate(readers):
        yield QuantizedEntry(
            name=site.name,
            shape=site.shape,
            embedding=parts[index][0][0] is None,
            w4a16=own[index].get("w4a16"),
            int8=own[index]["int8"],
            w8a16=own[index]["w8a16"],
            blocks=own[index].get("blocks"),
            fp16=fp16[index],
            fp32=fp32[index],
            allowed=limit(kept[index]),
            kept=kept[index],  # type: ignore[arg-type]  # one of FORMS
            reason=_reason(own[index], kept[index], widest),
        )


def _reason(errors: Mapping[str, float | None], kept: str, widest: str) -> str:
    """Say why a product does not have the first form: its own errors, or the reader of its matrix that needs more."""
    said = []
    for form, error in errors.items():
        if form == kept:
            break
        if is_allowed(form, error):
            return f"it shares the matrix of {widest}"
        allowed = "" if form in ("w8a16", "blocks") else f", {limit(form):.0%} is allowed"
        said.append(f"{form} errs by {_percent(error)}{allowed}")
    return "; ".join(said)


_Part = tuple[Array | None, Array]
"""Rows [rows, X] and a matrix [X, Y]; no rows for an embedding, whose rows are the columns."""
_Form = Callable[[Array | None, Array], Array]
"""Makes the product of a part in some precision, or an embedding's rows."""


def _parts(site: Site, rows: Array | None) -> list[_Part]:
    """A part for each head, or a single one; a large matrix gives some of its columns."""
    values = _some_columns(site.values)
    if rows is None:
        return [(None, values)]
    rows = rows[np.isfinite(rows).all(axis=1)]
    if not site.heads:
        return [(rows, values)]
    by_head = rows.reshape(len(rows), site.heads, site.X)
    return [(by_head[:, head], matrix) for head, matrix in enumerate(values)]


def _some_columns(matrix: Array) -> Array:
    """The columns of a matrix [.., X, Y] that are measured."""
    return np.ascontiguousarray(matrix[..., :: _step(matrix.shape[-1])])


def _step(Y: int) -> int:
    """The distance between columns that are measured."""
    return -(-Y // MOST_COLUMNS)


def _outputs(parts: Sequence[_Part], form: _Form) -> Array:
    """The rows that a form gives, head after head."""
    return np.concatenate([form(rows, matrix) for rows, matrix in parts])


def _exact(rows: Array | None, matrix: Array) -> Array:
    columns = matrix.astype(np.float64)
    return columns.T if rows is None else np.asarray(rows.astype(np.float64) @ columns)


def _single(rows: Array | None, matrix: Array) -> Array:
    return matrix.T if rows is None else np.asarray(rows @ matrix)


def _half(rows: Array | None, matrix: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float16
        columns = matrix.astype(np.float16)
        if rows is None:
            return columns.T
        product = rows.astype(np.float16).astype(np.float32) @ columns.astype(np.float32)
        return np.asarray(product.astype(np.float16))


def _percent(error: float | None) -> str:
    """An error in words."""
    return "no finite number" if error is None else f"{error:.1%}"


def _storage(site: Site) -> tuple[int, ...]:
    """The memory of a matrix, which is the same for a matrix and its transpose."""
    values: Array = site.matrix.values
    return int(values.__array_interface__["data"][0]), *sorted(values.shape)


def _with_rows(rows: Array | None, matrix: Array, steps: int) -> Array:
    """The product of rows in ``steps`` steps and a matrix, or the rows of an embedding."""
    if rows is None:
        return np.asarray(matrix.T)
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), SMALLEST)
    return np.asarray((np.rint(rows * (steps / largest)) * (largest / steps)) @ matrix)


def _nearest(rows: Array | None, matrix: Array, steps: int) -> Array:
    """The same, with columns rounded to the nearest integers of 8 bits."""
    integers, scale = quantized_columns(matrix)
    return _with_rows(rows, integers * scale, steps)


_short, _long = partial(_with_rows, steps=MOST), partial(_with_rows, steps=STEPS)
_quantized, _wide = partial(_nearest, steps=MOST), partial(_nearest, steps=STEPS)


def _relative(found: Array, exact: Array) -> float | None:
    """The error of rows, as above; rows of zeros do not count. None if it is NaN or infinite, or there are no rows."""
    if not len(exact):
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.square(found.astype(np.float64) - exact).mean(axis=1)
        size = np.square(exact).mean(axis=1)
        counted = size > SMALLEST**2
        if not counted.any():
            return 0.0
        error = float(np.sqrt(np.mean(difference[counted] / size[counted])))
    return error if np.isfinite(error) else None
