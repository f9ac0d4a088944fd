"""Kernels that are compiled before an engine runs: how they are found, and how they are loaded again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.operators.cases import GPU_MODULES
from support.operators.plugin_runs import node_of
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Case
from tightbeam.plugins.tensorrt import compiler
from tightbeam.plugins.tensorrt.ahead import ProfiledCall, ProfiledTensor, _placed, kernels_of
from tightbeam.plugins.tensorrt.compiler import (
    CACHE,
    CompiledKernel,
    carry_kernels,
    compile_kernel,
    write_carried,
)
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.launcher import CudaLauncher
from tightbeam.plugins.tensorrt.native import Gpu, plan
from tightbeam.plugins.tensorrt.plugin import Node
from tightbeam.plugins.tensorrt.shapes import largest_shapes, letters_of, shape_of

OPERATOR, NAME = "ngram_block", "tightbeam::device::ngram_block<float>"
CHOOSING = {"B": (1, 40), "M": (1, 20), "N": (1, 3000)}
"""Sizes that differ between the runs of an engine."""


def letters(name: str, case: Case) -> dict[str, int]:
    outputs = GPU_MODULES[name].exact(case)
    return letters_of(OPERATORS[name], {key: array.shape for key, array in {**case.inputs, **outputs}.items()})


def profiled(name: str, case: Case, float_type: str) -> tuple[ProfiledCall, Any]:
    """A call whose B, M and N have the ranges of ``CHOOSING``, and a function that maps sizes to its shapes."""
    node = Node.of(name, node_of(name, case), case.attributes)
    own = letters(name, case)

    def shapes(sizes: dict[str, int]) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        given = {**own, **{letter: size for letter, size in sizes.items() if letter in own}}
        return (
            {entry.name: shape_of(entry, given) for entry in node.on_device},
            {entry.name: shape_of(entry, given) for entry in node.outputs},
        )

    least, most = (shapes({letter: ends[i] for letter, ends in CHOOSING.items()}) for i in (0, 1))
    before, after = (tuple(ProfiledTensor(key, least[i][key], most[i][key]) for key in least[i]) for i in (0, 1))
    return ProfiledCall(name, float_type, tuple(case.attributes.items()), before, after), shapes


@pytest.mark.parametrize("capability", ["75", "90"])
@pytest.mark.parametrize("name", GPU_MODULES)
def test_no_run_starts_a_kernel_that_was_not_found(name: str, capability: str) -> None:
    chosen = random.Random(name)
    for case in (GPU_MODULES[name].cases()[0], GPU_MODULES[name].cases()[-1]):
        for float_type in ("float32", "float16"):
            call, shapes = profiled(name, case, float_type)
            found = {kernel for _, kernel in kernels_of([call], capability)}
            started = set()
            for _ in range(200):
                sizes = {letter: chosen.randint(*ends) for letter, ends in CHOOSING.items()}
                inputs, outputs = _placed(OPERATORS[name], *shapes(sizes))
                gpu = Gpu(chosen.randint(16, 200), 99 * 1024 if capability == "90" else 64 * 1024, int(capability))
                try:
                    planned = plan(name, float_type, inputs, outputs, case.attributes, gpu, 1 << 20)
                except TensorRTError:
                    continue  # sizes that this case's others exclude
                started |= {kernel.name for kernel in planned.kernels}
            assert started and started <= found


def test_sizes_of_an_engine_choose_kernels() -> None:
    """More queries than a tile has need another kernel, and splits need one more to combine them."""
    case = GPU_MODULES["SourceAttention"].cases()[0]
    call, _ = profiled("SourceAttention", case, "float16")
    names = [kernel for _, kernel in kernels_of([call], "80")]
    assert any("combine_splits" in name for name in names)
    assert sum("source_attention_tensor_core" in name for name in names) == 2
    assert all("tensor_core" not in kernel for _, kernel in kernels_of([call], "75"))


# ---- compiled kernels in an engine's folder


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The kernels that a stand-in for NVRTC compiled, without a cache on disk."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda.bindings is not here", exc_type=ImportError)
    asked: list[str] = []

    def note(nvrtc: Any, headers: Path, operator: str, name: str, capability: str) -> CompiledKernel:
        asked.append(capability)
        return CompiledKernel("symbol", f"{name} for {capability}\n".encode() + bytes(range(256)))

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(CACHE, str(tmp_path / "file"))
    monkeypatch.setattr(compiler, "_compile", note)
    monkeypatch.setattr(compiler, "_carried", {})
    yield asked


def test_a_carried_kernel_is_not_compiled(compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_carried(tmp_path, OPERATOR, NAME, "80")
    carry_kernels([path])
    monkeypatch.setattr(compiler, "_nvrtc", lambda: pytest.fail("NVRTC is not needed"))
    found = compile_kernel(OPERATOR, NAME, "80")
    assert found.symbol == "symbol" and found.cubin.startswith(NAME.encode())
    assert compiled == ["80"]


@pytest.mark.parametrize("change", ["capability", "sources", "options", "version of CUDA", "damaged", "gone"])
def test_a_carried_kernel_that_does_not_fit_is_compiled(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = write_carried(tmp_path, OPERATOR, NAME, "80")
    carry_kernels([path])
    compiler._key.cache_clear()
    if change == "sources":
        monkeypatch.setattr(compiler, "_headers_of", lambda operator: {"a.cuh": b"changed"})
    elif change == "options":
        monkeypatch.setattr(compiler, "OPTIONS", ("-std=c++20",))
    elif change == "version of CUDA":
        monkeypatch.setattr(compiler.importlib.metadata, "version", lambda package: "12.9.1")
    elif change == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    elif change == "gone":
        path.unlink()
    compile_kernel(OPERATOR, NAME, "86" if change == "capability" else "80")
    compiler._key.cache_clear()
    assert compiled == ["80", "86" if change == "capability" else "80"]


def test_a_carried_kernel_that_the_driver_refuses_is_compiled(compiled: list[str], tmp_path: Path) -> None:
    """A later CUDA than the driver's may have compiled it."""
    carry_kernels([write_carried(tmp_path, OPERATOR, NAME, "80")])
    launcher = object.__new__(CudaLauncher)
    launcher.capability, launcher._functions = "80", {}
    refused = [TensorRTError("CUDA: cuModuleLoadData failed with CUDA_ERROR_INVALID_IMAGE")]

    def load(kernel: CompiledKernel) -> str:
        if refused:
            raise refused.pop()
        return kernel.symbol

    launcher._load = load  # type: ignore[method-assign]
    assert launcher._function(OPERATOR, NAME) == "symbol"
    assert compiled == ["80", "80"]


def test_the_largest_shapes_of_groups_of_beams() -> None:
    """A batch has many groups of few beams, or few groups of many beams."""
    most = {"logits": (32, 101), "beam_scores": (32, 4), "lengths": (32,), "scores": (32, 9)}
    found = list(largest_shapes(OPERATORS["BeamTopK"], most))
    expected = [(32, 1), (16, 2), (10, 3), (8, 4)]
    assert [shapes["beam_scores"] for shapes in found] == expected
    assert [shapes["lengths"] for shapes in found] == [(groups,) for groups, _ in expected]
    assert [shapes["logits"] for shapes in found] == [(groups * beams, 101) for groups, beams in expected]
    one = most | {"beam_scores": (8, 4), "lengths": (8,), "scores": (8, 9)}
    assert list(largest_shapes(OPERATORS["BeamTopK"], one)) == [one]
