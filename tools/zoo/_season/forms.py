"""The errors of a model's products in six forms of fewer bits, row by row as the guard of int8 measures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.zoo._season.model import Inputs, rows_of

__all__ = ["FORMS", "Form", "measure_forms"]

FORMS = (
    "int8 rows and columns",
    "blocks of 128, both sides",
    "scales moved from rows to weights",
    "16 outlier columns apart",
    "int8 weights, float rows",
    "int4 weights in groups of 32",
)
STRENGTHS = (0.3, 0.5, 0.7, 0.85)
"""Shares of a channel's size that moving of scales takes from the rows; the best one counts."""
APART = 16
MOST_ROWS = 256


@dataclass(frozen=True)
class Form:
    """The errors of all products in a form that has them, and how many weights each of them has."""

    errors: Tensor
    sizes: Tensor

    def share(self, most: float) -> float:
        """The share of the weights whose product errs by at most ``most``."""
        return float(self.sizes[self.errors <= most].sum() / self.sizes.sum())


def measure_forms(model: Any, inputs: Inputs) -> dict[str, Form]:
    """Measure all linear layers of a model but that of the logits, on the second half of their rows.

    Parameters
    ----------
    model
        In float64.
    inputs
        What it runs on; the first half of each product's rows chooses scales and columns.

    Returns
    -------
    dict
        By the names in ``FORMS``.
    """
    linear = {
        name: module.weight.detach()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings()
    }
    rows = rows_of(model, inputs, list(linear))
    found = [(weight.numel(), _errors(rows[name], weight)) for name, weight in linear.items()]
    forms = {}
    for form in FORMS:
        having = [(size, errors[form]) for size, errors in found if form in errors]
        if having:
            sizes, errors = zip(*having, strict=True)
            forms[form] = Form(torch.tensor(errors), torch.tensor(sizes, dtype=torch.float64))
    return forms


def _errors(rows: Tensor, weight: Tensor) -> Mapping[str, float]:
    half = len(rows) // 2
    seen, rows = rows[:half], rows[half:][:MOST_ROWS]
    exact = rows @ weight.T
    counted = exact.square().sum(dim=1) > 0

    def error(product: Tensor) -> float:
        ratio = (product - exact).square().sum(dim=1)[counted] / exact.square().sum(dim=1)[counted]
        return float(ratio.mean().sqrt())

    def in_blocks(numbers: Tensor, block: int, most: int = 127) -> Tensor:
        return _rounded(numbers.reshape(-1, block), most).reshape(numbers.shape)

    largest, own = seen.abs().amax(dim=0).clamp_min(1e-5), weight.abs().amax(dim=0).clamp_min(1e-5)
    moved = [largest**strength / own ** (1 - strength) for strength in STRENGTHS]
    columns = torch.zeros(rows.shape[1], dtype=torch.bool)
    columns[largest.topk(min(APART, len(largest))).indices] = True
    apart = rows[:, columns] @ weight[:, columns].T
    X = rows.shape[1]
    errors = dict.fromkeys(FORMS, 0.0)
    errors |= {
        FORMS[0]: error(_rounded(rows) @ _rounded(weight).T),
        FORMS[2]: min(error(_rounded(rows / s) @ _rounded(weight * s).T) for s in moved),
        FORMS[3]: error(_rounded(rows * ~columns) @ _rounded(weight * ~columns).T + apart),
        FORMS[4]: error(rows @ _rounded(weight).T),
    }
    for form, block in ((FORMS[1], 128), (FORMS[5], 32)):
        if X % block:
            del errors[form]
    if FORMS[1] in errors:
        errors[FORMS[1]] = error(in_blocks(rows, 128) @ in_blocks(weight, 128).T)
    if FORMS[5] in errors:
        errors[FORMS[5]] = error(rows @ in_blocks(weight, 32, 7).T)
    return errors


def _rounded(numbers: Tensor, most: int = 127) -> Tensor:
    """Rows [., X] rounded to integers of at most ``most``, with a scale each."""
    step = numbers.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / most
    return (numbers / step).round() * step
