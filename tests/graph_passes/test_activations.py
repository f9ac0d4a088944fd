"""The pass that finds activations written out in nodes."""

from __future__ import annotations

from typing import Any

import onnx.parser
import onnx_graphsurgeon as gs
import pytest

from tightbeam.graph_passes.precision.activations import activation_of

GELU_TANH = """
    half = Constant <value = float {0.5}> ()
    three = Constant <value = float {3.0}> ()
    a = Constant <value = float {0.044715}> ()
    b = Constant <value = float {0.7978846}> ()
    one = Constant <value = float {1.0}> ()
    halved = Mul (x, half)
    cube = Pow (x, three)
    scaled = Mul (cube, a)
    sum = Add (x, scaled)
    inner = Mul (sum, b)
    tanh = Tanh (inner)
    above = Add (tanh, one)
    y = Mul (halved, above)
"""
SILU = "s = Sigmoid (x) y = Mul (x, s)"


def found(body: str, output: str = "y") -> Any:
    text = f'<ir_version: 10, opset_import: ["": 24]> g (float[N] x) => (float[N] {output}) {{ {body} }}'
    graph = gs.import_onnx(onnx.parser.parse_model(text))
    graph.fold_constants()
    result = activation_of(graph.inputs[0], graph.outputs)
    return result and (result[0], result[1].name)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("y = Relu (x)", "Relu"),
        ("y = Gelu (x)", "Gelu"),
        ('y = Gelu <approximate = "tanh"> (x)', "GeluTanh"),
        ("y = Swish (x)", "Swish"),
        (SILU, "Swish"),
        (SILU.replace("x, s", "s, x"), "Swish"),
        (GELU_TANH, "GeluTanh"),
        (GELU_TANH.replace("x, scaled", "scaled, x").replace("halved, above", "above, halved"), "GeluTanh"),
    ],
)
def test_activation_is_found(body: str, name: str) -> None:
    assert found(body) == (name, "y")


@pytest.mark.parametrize(
    "body",
    [
        "y = Tanh (x)",
        "y = Swish <alpha = 2.0> (x)",
        "z = Relu (x) y = Add (z, x)",
        "s = Sigmoid (x) z = Mul (x, s) y = Add (z, s)",
        "s = Sigmoid (x) y = Mul (s, s)",
        GELU_TANH.replace("0.044715", "0.05"),
        GELU_TANH.replace("{0.5}", "{0.6}"),
        GELU_TANH.replace("{3.0}", "{2.0}"),
        GELU_TANH.replace("tanh = Tanh", "tanh = Sigmoid"),
        GELU_TANH.replace("halved, above", "above, above"),
    ],
)
def test_other_functions_are_not(body: str) -> None:
    assert found(body) is None


def test_an_intermediate_output_of_the_graph_stays() -> None:
    assert found(SILU, output="s") is None
