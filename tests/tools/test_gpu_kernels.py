"""The sections `rates` and `kernels` of the GPU check, rehearsed here; `kernels` must find wrong results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support.operators import cuda_host
from support.operators.cases import GPU_MODULES
from tightbeam.plugins.tensorrt.native import Gpu
from tools.gpu import _place, _process, kernels, rates
from tools.gpu._kernels.attention import BeamWork, SourceWork
from tools.gpu._kernels.work import Operator

H200 = Gpu(multiprocessors=132, shared_bytes=227 * 1024)


class Shim(_place.Host):
    """A rehearsal whose CUDA kernels run on the host shim."""

    def launcher(self) -> Any:
        return cuda_host.HostLauncher(Gpu(multiprocessors=4, shared_bytes=227 * 1024))


def test_section_rates_in_a_rehearsal(tmp_path: Path) -> None:
    output = tmp_path / "rates.jsonl"
    arguments = {"folder": str(tmp_path), "rehearse": True, "seconds": 60}
    ended = _process.run("tools.gpu.rates:run", arguments, output, 60)
    assert ended.outcome == "passed", ended.reason
    found = _process.read(output)
    counts = {title: len(_process.rows(found, title)) for title in ("Memory", "Matrix products", "Launches")}
    assert counts == {"Memory": 4, "Matrix products": 3, "Launches": 2}
    (best,) = _process.rows(found, rates.RATES)
    assert best.keys() == {"bytes", "fp16", "bf16", "fp32"} and all(value > 0 for value in best.values())
    assert not any("failed" in row for title in counts for row in _process.rows(found, title))


def measured() -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Rows of the section by table, and its last word, if it is an error."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    try:
        for title, cells in kernels.measure(Shim()):
            tables[title].append(dict(cells))
    except SystemExit as error:
        return tables, str(error)
    return tables, ""


@pytest.mark.slow
def test_section_kernels_in_a_rehearsal() -> None:
    cuda_host.kernels("attention"), cuda_host.kernels("search")  # compiled here, or the test is skipped
    tables, error = measured()
    assert not error and tables.keys() == {"Checks", "Kernels", *GPU_MODULES}
    assert all(check["right"] for check in tables["Checks"])
    assert {check["call"].split(",")[0] for check in tables["Checks"]} == set(GPU_MODULES)
    for name in GPU_MODULES:
        assert all(float(row["time, µs"]) > 0 for row in tables[name])
        whats = [row["what"] for row in tables[name]]
        assert whats.count("ours") == whats.count("floor")
        assert len(set(whats)) >= 3, "ours, the floor and a peer"
    assert "SDPA on deduplicated K/V" in {row["what"] for row in tables["LatentAttention"]}


@pytest.mark.parametrize("section", [rates, kernels])
def test_without_a_gpu(section: ModuleType, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match="error: torch finds no GPU here; expected one, or --rehearse"):
        list(section.run(str(tmp_path), False, 60.0))


def found_with(call: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Results of the section where ``call(right, operator, inputs, outputs)`` replaces the kernels."""
    right = Operator.__call__
    monkeypatch.setattr(Operator, "__call__", lambda self, inputs, outputs: call(right, self, inputs, outputs))
    return measured()


def nearly(right: Any, operator: Any, inputs: Any, outputs: Any) -> Any:
    """A result with one number in a hundred off by a hundredth of the usual size."""
    started = right(operator, inputs, outputs)
    first = next(iter(outputs.values())).view(-1)
    first[::100] += 0.03
    return started


def without_starting(right: Any, operator: Any, inputs: Any, outputs: Any) -> Any:
    return ()


@pytest.mark.parametrize("fault", [pytest.param(nearly, marks=pytest.mark.slow), without_starting])
def test_a_wrong_result_is_found_and_not_timed(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, error = found_with(fault, monkeypatch)
    works = list(kernels.works(Shim()))
    assert tables.keys() == {"Checks"}
    assert {check["call"] for check in tables["Checks"] if not check["right"]} == {
        f"{work.operator}, {work.label}, {work.dtype_name}" for work, _ in works
    }
    assert error.startswith(f"error: {len(works)} calls are wrong or failed: SourceAttention, ")


@pytest.mark.slow
def test_a_mask_or_a_trie_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmasked(right: Any, operator: Any, inputs: Any, outputs: Any) -> Any:
        more = {"mask": torch.ones_like(inputs["mask"])} if "mask" in inputs else {}
        more |= {"trie_nodes": torch.zeros_like(inputs["trie_nodes"])} if "trie_nodes" in inputs else {}
        return right(operator, {**inputs, **more}, outputs)

    tables, _ = found_with(unmasked, monkeypatch)
    wrong = {check["call"].split(",")[0] for check in tables["Checks"] if not check["right"]}
    assert wrong == {"SourceAttention", "LatentAttention", "BeamTopK"}


@pytest.mark.slow
def test_a_failure_is_a_row_and_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(right: Any, operator: Any, inputs: Any, outputs: Any) -> Any:
        if operator.work.operator == "LatentAttention":
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")
        return right(operator, inputs, outputs)

    monkeypatch.setattr(SourceWork, "_sdpa", lambda *arguments: {"output": torch.ones(8, 32)})
    tables, error = found_with(out_of_memory, monkeypatch)
    failed = [(row["what"], row["failed"]) for row in tables["LatentAttention"]]
    assert failed == [("ours", "OutOfMemoryError: CUDA out of memory.")] * 2
    assert [("failed" in row) == ("SDPA" in row["what"]) for row in tables["SourceAttention"]] == [True] * 10
    assert error.startswith("error: 2 calls are wrong or failed: LatentAttention, ")
    assert len(tables["BeamTopK"]) == 6


def test_compare() -> None:
    exact = torch.tensor([1.0, -2.0, float("-inf"), 0.5], dtype=torch.float64)
    near = exact + torch.tensor([1e-3, 0, 0, 0])
    compare = kernels.compare
    assert compare(near, exact, near).right
    assert compare(exact + 1.9 * (near - exact).nan_to_num(), exact, near).right
    assert not compare(exact + 2.1 * (near - exact).nan_to_num(), exact, near).right
    for wrong in (float("nan"), float("-inf"), float("inf")):
        other = exact.clone()
        other[3] = wrong
        assert not compare(other, exact, near).right
    other = exact.clone()
    other[2] = 0.0
    assert not compare(other, exact, near).right
    many, noise = torch.ones(100_000, dtype=torch.float64), torch.full((100_000,), 1e-4)
    assert compare(many - noise, many, many + noise).right
    noise[77] = 6e-4  # which the root mean square does not show
    assert not compare(many + noise, many, many + 1e-4).right
    for naive in (exact + 1, exact.nan_to_num(neginf=0.0), exact * float("nan")):
        with pytest.raises(RuntimeError, match="PyTorch itself is off"):
            compare(exact, exact, naive)


def test_floors_at_the_sizes_of_bart_large() -> None:
    on_gpu = object.__new__(_place.OnGpu)
    full = [work for work, _ in kernels.works(on_gpu)]
    latent = [work for work in full if work.operator == "LatentAttention"]
    assert [(work.B, work.dtype_name) for work in latent] == [
        *((B, "float16") for B in (32, 128, 320)),
        (128, "bfloat16"),
    ]
    assert {(work.M, work.H, work.D, work.N) for work in latent} == {(4, 16, 1024, 1024)}
    assert latent[0].flops({}) == 8_589_934_592
    assert latent[0].bytes_moved({}) == 67_108_864 + 32_768 + 2 * 4_194_304
    assert [(work.B, work.T) for work in full if work.operator == "NGramBlock"] == [(1280, 142), (32, 4000)]
    assert [work.B * work.M for work in full if work.operator == "BeamTopK"] == [128, 512, 1280, 128]
    measured = rates.Rates(bytes_per_s=4e12, flops_per_s=8e14)
    assert measured.floor_s(4e9, 8e9) == 1e-3
    assert measured.floor_s(4e6, 8e12) == 1e-2


def test_the_definition_checks_the_kernels_that_are_timed() -> None:
    def kernels_of(work: Any) -> set[tuple[str, str]]:
        launcher, work = kernels.RecordingLauncher(H200), replace(work, B=1, device="cpu")
        inputs = work.inputs(0)
        Operator(work, Shim(), launcher)(inputs, work.outputs(inputs))
        return {(folder, name) for folder, name in launcher.kernels if "combine_splits" not in name}

    works = list(kernels.works(object.__new__(_place.OnGpu)))
    assert len(works) == 30
    for full, small in works:
        assert kernels_of(full) == kernels_of(small) != set(), full.operator


def test_rows_that_histories_share_count_once() -> None:
    work = BeamWork(3, torch.float16, "cpu", M=4, H=2, K=8, T=11, T_max=12, shared=True)
    ancestry = work.inputs(0)["ancestry"]
    different = {(b, t, int(ancestry[b, m, t])) for b in range(3) for m in range(4) for t in range(10)}
    assert len(different) < 3 * 4 * 10
    row_bytes = 2 * 8 * 2
    others = 4 * 12 * 11 + 12 * row_bytes * (3 + 2 + 1)
    assert work.bytes_moved(work.inputs(0)) == 2 * len(different) * row_bytes + others
    np.testing.assert_array_equal(ancestry[:, :, -1], np.tile(np.arange(4), (3, 1)))


class Cuda(ModuleType):
    """A stand-in for torch.cuda as far as timing uses it. ``log``: the calls."""

    def __init__(self, refuses: str = "") -> None:
        self.log: list[str] = []
        self.refuses, self.mode = refuses, "default"

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def empty_cache(self) -> None: ...

    def set_sync_debug_mode(self, mode: str) -> None:
        self.mode = mode

    def call(self) -> None:
        if self.mode == "error" and self.refuses:
            raise RuntimeError(self.refuses)
        self.log.append("call")

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        self.log.append("begin")
        yield
        self.log.append("end")

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.log.append("replay"))

    def Event(self, enable_timing: bool) -> Any:
        return SimpleNamespace(record=lambda: self.log.append("event"), elapsed_time=lambda other: 8.0)


def test_times_are_those_of_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setattr(_place.torch, "cuda", cuda)
    place = object.__new__(_place.OnGpu)
    times = place.times([cuda.call] * 4)
    assert times.median_s == 2e-3
    begin = cuda.log.index("begin")
    assert cuda.log[:begin].count("call") >= 1
    assert cuda.log[begin : cuda.log.index("end")] == ["begin", *["call"] * 4]
    timed = cuda.log[cuda.log.index("event") :]
    assert timed[:6] == ["event", "replay", "event"] * 2
    assert cuda.mode == "default"


def test_calls_that_wait_for_the_gpu_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda("called a synchronizing CUDA operation")
    monkeypatch.setattr(_place.torch, "cuda", cuda)
    with pytest.raises(RuntimeError, match="called a synchronizing"):
        object.__new__(_place.OnGpu).times([cuda.call] * 4)
    assert "begin" not in cuda.log and cuda.mode == "default"
