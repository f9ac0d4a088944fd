"""PromptAttention with random sizes, on every instruction set, and in parts, which must not change any bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.operators.runs import MODULES, check, run
from support.tolerance import LUCK
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import function
from tightbeam.plugins.ops._case import Case

NAME = "PromptAttention"
LIBRARY = cpu_library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")


@pytest.mark.parametrize("library", [pytest.param(None, id="function"), pytest.param(LIBRARY, marks=needs_library)])
@settings(max_examples=30, deadline=None)
@given(
    starts=st.lists(st.integers(0, 90), min_size=1, max_size=3),
    N=st.integers(1, 150),
    G=st.integers(1, 3),
    shared=st.integers(1, 3),
    K=st.integers(1, 40),
    V=st.integers(1, 90),
    spare=st.integers(0, 5),
    window=st.integers(0, 100),
    softcap=st.sampled_from([0.0, 0.0, 3.0]),
    spread=st.sampled_from([1.0, 10.0]),
    biased=st.booleans(),
    whole=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_random_sizes(
    library: Path | None, seed: int, starts: list[int], G: int, shared: int, whole: bool, **sizes: Any
) -> None:
    sizes |= {"B": len(starts), "H": G * shared, "G": G, "starts": None if whole else starts}
    case = MODULES[NAME].random_case(seed, **sizes)
    check(NAME, case, run(NAME, case, library), LUCK)


def test_the_function_of_a_whole_prompt_has_no_mask() -> None:
    """Only without a mask does a GPU take its fastest kernel."""
    present = frozenset({"query", "key", "value", "output"})
    for more, inputs, causal in (
        (set(), 3, True),
        ({"softcap"}, 3, True),
        ({"window"}, 4, False),
        ({"starts"}, 4, False),
    ):
        (node,) = (node for node in function(NAME, present | more).node if node.op_type == "Attention")
        assert (len(node.input), "is_causal" in {own.name for own in node.attribute}) == (inputs, causal)


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
@pytest.mark.parametrize("form", [{}, {"window": 300}, {"softcap": 2.0}, {"biased": True}])
@pytest.mark.parametrize("part", [1, 37, 512])
def test_parts_give_the_bits_of_the_whole(part: int, form: dict[str, Any]) -> None:
    """What is behind a part's last query, and another sample, may hold NaN."""
    N = 1100 if part > 1 else 60
    case = MODULES[NAME].random_case(1, B=1, N=N, H=4, G=2, K=20, V=24, **form)
    whole = run(NAME, case, LIBRARY)["output"]
    for start in range(0, N, part):
        end = min(N, start + part)
        inputs = dict(case.inputs, starts=np.array([start, 0]))
        inputs["query"] = np.concatenate([case.inputs["query"][:, :, start:end]] * 2)
        for name in ("key", "value"):
            inputs[name] = np.concatenate([case.inputs[name], np.full_like(case.inputs[name], np.nan)])
            inputs[name][0, :, end:] = np.nan
        found = run(NAME, Case("part", inputs, case.attributes), LIBRARY)["output"]
        np.testing.assert_array_equal(found[0], whole[0, start:end])


@needs_library
def test_nan_reaches_the_queries_that_see_it() -> None:
    case = MODULES[NAME].random_case(2, B=2, N=40, H=2, G=1, K=8, window=5)
    case.inputs["query"][0, 1, 3, 0] = np.nan
    case.inputs["key"][1, 0, 20, 7] = np.nan
    found = np.isnan(run(NAME, case, LIBRARY)["output"].reshape(2, 40, 2, 8)).all(axis=-1)
    expected = np.zeros((2, 40, 2), np.bool_)
    expected[0, 3, 1] = expected[1, 20:25] = True
    np.testing.assert_array_equal(found, expected)
