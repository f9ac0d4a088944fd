"""Programs that are converted as they were captured, and those that torch has to decompose: the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tightbeam.export.tracing import torch_export
from tightbeam.export.tracing.capture import capture

WIDTH = 6
SIZES = ({0: Dim("B", min=1)},)


class Step(nn.Module):
    """A function [B, WIDTH] -> [B, WIDTH] as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def casts(x: Tensor) -> Tensor:
    wide = x.to(torch.float64).to(x.device).reshape(x.shape).detach()
    return torch.where((x > 0) & (x < 1) | (x < -1), wide.to(torch.float32), x)


def only_casts(x: Tensor) -> Tensor:
    return (x * 2).to(torch.float32)


def subtracts(x: Tensor) -> Tensor:
    return torch.rsub(x, 1.0)


def writes(x: Tensor) -> Tensor:
    """The first write is read through a view that was made before it."""
    y = x + 1
    view = y[:, :2]
    y.mul_(2)
    y[:, 3] += x[:, 0]
    return torch.cat((view, y[:, 2:]), dim=1)


def shapes(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, 3)).transpose(1, 2).flatten(1)


def computed_sizes(x: Tensor) -> Tensor:
    longer = torch.cat((x, x.new_ones(x.shape[0] + 1, WIDTH)))[: x.shape[0] + 1]
    return longer.unflatten(1, (2, 3)).flatten(1)[:-1]


def uncomputed_sizes(x: Tensor) -> Tensor:
    return torch.stack((x, x + 1)).flatten(0, 1)[: x.shape[0]]


def adds(x: Tensor) -> Tensor:
    y = x * 2
    y += x
    return y


def adds_beside_a_view(x: Tensor) -> Tensor:
    y = x * 2
    view = y[:, :2]
    y += x
    return torch.cat((view, y[:, 2:]), dim=1)


def graph_within(x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = x * 3
    return y + 1


def without_conversion(x: Tensor) -> Tensor:
    return torch.clip(x, -1.0, 1.0)


@pytest.mark.parametrize(
    ("function", "as_captured"),
    [
        (casts, True),
        (only_casts, True),
        (without_conversion, True),  # which torch's exporter refuses, so that it is given the module
        (shapes, True),
        (computed_sizes, True),
        (adds, True),
        (subtracts, False),
        (writes, False),
        (adds_beside_a_view, False),
        (uncomputed_sizes, False),
        (graph_within, False),
    ],
)
def test_the_graph_gives_the_numbers_of_the_module(function: Callable[[Tensor], Tensor], as_captured: bool) -> None:
    made = []

    def captured(*arguments: object) -> object:
        made.append(capture(*arguments))  # type: ignore[arg-type]
        return made[-1]

    step, example = Step(function), torch.linspace(-2, 2, 3 * WIDTH).reshape(3, WIDTH)
    with patch.object(torch_export, "capture", captured):
        graph = torch_export.trace_module(step, (example,), SIZES, {"x": ("B", WIDTH)}, {"y": ("B", WIDTH)})
    assert ("run_decompositions" in vars(made[0])) == as_captured
    session = onnxruntime.InferenceSession(gs.export_onnx(graph).SerializeToString())
    for B in (1, 3, 5):
        x = torch.linspace(-3, 3, B * WIDTH).reshape(B, WIDTH)
        (found,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(found, step(x).numpy(), rtol=1e-6)
