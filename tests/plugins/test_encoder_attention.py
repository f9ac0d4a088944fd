"""EncoderAttention with random sizes, on every instruction set, and with padding, which must not change any bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.operators.runs import MODULES, check, run
from support.tolerance import LUCK
from tightbeam.graph_passes.tensor_types import tensor_infos
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import DOMAIN
from tightbeam.plugins.ops._case import Case

NAME = "EncoderAttention"
LIBRARY = cpu_library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")


@pytest.mark.parametrize("library", [pytest.param(None, id="function"), pytest.param(LIBRARY, marks=needs_library)])
@settings(max_examples=30, deadline=None)
@given(
    B=st.integers(1, 3),
    N=st.integers(1, 150),
    H=st.integers(1, 4),
    K=st.integers(1, 40),
    V=st.integers(1, 90),
    spread=st.sampled_from([1.0, 10.0]),
    masked=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_random_sizes(library: Path | None, seed: int, **sizes: Any) -> None:
    case = MODULES[NAME].random_case(seed, **sizes)
    check(NAME, case, run(NAME, case, library), LUCK)


@needs_library
@pytest.mark.parametrize("level", ["v3", "baseline"])
def test_cases_on_lower_instruction_sets(level: str) -> None:
    program = f"""
from support.operators.runs import MODULES, check, run
from tightbeam.plugins.library import cpu_library
for case in MODULES["{NAME}"].cases():
    check("{NAME}", case, run("{NAME}", case, cpu_library()))
"""
    environment = {**os.environ, "TIGHTBEAM_ISA": level, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@needs_library
@pytest.mark.parametrize("biased", [False, True])
def test_a_sample_gives_the_same_bits_in_any_batch(biased: bool) -> None:
    """The sample is alone without padding, or padded at the end beside longer samples. The padding may hold NaN."""
    lengths = [70, 1, 600, 33, 130]
    case = MODULES[NAME].random_case(1, B=5, N=600, H=2, K=20, V=24, lengths=lengths, biased=biased)
    for name in ("query", "key", "value"):
        case.inputs[name][~case.inputs["mask"]] = np.nan
    together = run(NAME, case, LIBRARY)["output"]
    for b, length in enumerate(lengths):
        inputs = {name: case.inputs[name][b : b + 1, :length] for name in ("query", "key", "value", "mask")}
        if biased:
            inputs["distance_bias"] = case.inputs["distance_bias"][:, 600 - length : 600 + length - 1]
        alone = run(NAME, Case("alone", inputs, case.attributes), LIBRARY)["output"]
        np.testing.assert_array_equal(together[b, :length], alone[0])
        assert (together[b, length:] == 0).all()


@needs_library
def test_nan_reaches_the_outputs_that_depend_on_it() -> None:
    case = MODULES[NAME].random_case(2, B=2, N=40, H=2, K=8, masked=False)
    case.inputs["query"][0, 3, 0] = np.nan
    case.inputs["key"][1, 39, 8] = np.nan
    found = np.isnan(run(NAME, case, LIBRARY)["output"].reshape(2, 40, 2, 8)).all(axis=-1)
    expected = np.zeros((2, 40, 2), np.bool_)
    expected[0, 3, 0] = expected[1, :, 1] = True
    np.testing.assert_array_equal(found, expected)


def test_width_of_the_output_is_unknown_if_the_width_of_the_values_is() -> None:
    """ONNX's own Attention infers 0, which a following product contradicts."""
    graph = gs.Graph(opset=24)
    states, mask = gs.Variable("states", np.float32, ["B", "N", 6]), gs.Variable("mask", bool, ["B", "N"])
    shape = gs.Variable("shape", np.int64, [3])
    rows = gs.Variable("rows")
    attended, output = gs.Variable("attended"), gs.Variable("output", np.float32)
    product = gs.Constant("product", np.ones((6, 50), np.float32))
    graph.inputs, graph.outputs = [states, mask, shape], [output]
    graph.nodes = [
        gs.Node("Reshape", inputs=[states, shape], outputs=[rows]),
        gs.Node(NAME, domain=DOMAIN, attrs={"heads": 2, "scale": 1.0}, inputs=[rows] * 3 + [mask], outputs=[attended]),
        gs.Node("MatMul", inputs=[attended, product], outputs=[output]),
    ]
    assert tensor_infos(graph, "here")["output"].elem_type == onnx.TensorProto.FLOAT
