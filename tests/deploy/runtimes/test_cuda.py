"""`CudaDevice` over plain memory in place of a GPU."""

from __future__ import annotations

import gc
import inspect
import re
from functools import partial

import numpy as np
import pytest

from support.runtimes.cuda_in_memory import Code, CudaInMemory, Work, expect_nothing_left
from tightbeam.deploy.errors import DeviceError, RuntimeSetupError
from tightbeam.deploy.runtimes.device import cuda as device_module
from tightbeam.deploy.runtimes.device.cuda import CudaDevice, StagedArrays, open_device
from tightbeam.plugins.tensorrt.distribution import gpu_capability


def test_the_fake_runtime_has_the_functions_of_cuda() -> None:
    """Every function that is used exists, with the same arguments."""
    runtime = pytest.importorskip("cuda.bindings.runtime")
    methods = [name for name in vars(CudaInMemory) if name.startswith("cuda") and callable(getattr(CudaInMemory, name))]
    functions = [name for name in methods if inspect.isfunction(getattr(CudaInMemory, name))]
    assert len(functions) > 15
    for name in functions:
        ours = list(inspect.signature(getattr(CudaInMemory, name)).parameters)[1:]
        signature = getattr(runtime, name).__doc__.strip().splitlines()[0]
        theirs = [
            re.split("[:=]", part)[0].split()[-1] for part in signature.partition("(")[2].rstrip(")").split(",") if part
        ]
        assert ours == theirs, signature
    enumerations = ("cudaError_t", "cudaMemcpyKind", "cudaDeviceAttr", "cudaStreamCaptureMode", "cudaGraphNodeType")
    for enumeration in (*enumerations, "cudaMemoryType"):
        ours = getattr(CudaInMemory, enumeration)
        names = ours.__members__ if hasattr(ours, "__members__") else vars(ours)
        assert all(hasattr(getattr(runtime, enumeration), name) for name in names)
    assert {name for name in vars(runtime) if name in ("cudaStreamNonBlocking", "cudaHostAllocDefault")}
    used = set(re.findall(r"runtime\.(cuda\w+)", inspect.getsource(device_module)))
    assert used <= set(dir(CudaInMemory)), "used, and not here"


def test_gpu_properties() -> None:
    device = CudaDevice(CudaInMemory())
    assert (device.capability, device.name) == ("89", "Plain memory")


def test_no_gpu() -> None:
    with pytest.raises(
        DeviceError, match=r"CUDA finds no GPU on this machine \(it counts 0\); run on the CPU: --engine onnxruntime"
    ):
        CudaDevice(CudaInMemory(devices=0))


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = CudaInMemory()
    monkeypatch.setattr(cuda, "cudaGetDeviceCount", lambda: (Code.cudaErrorInvalidValue, None))
    with pytest.raises(
        DeviceError, match=r"CUDA finds no GPU on this machine \(cudaErrorInvalidValue\); run on the CPU"
    ):
        CudaDevice(cuda)


def test_out_of_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the kind of memory, and the bytes that were requested."""
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    cuda.capacity = 100
    with pytest.raises(DeviceError, match=r"^no memory on the GPU for 101 bytes; run fewer rows together$"):
        device.allocate(101)
    with pytest.raises(
        DeviceError, match=r"^no memory of the host, page-locked, for 104 bytes; run fewer rows together$"
    ):
        device.allocate_host(104)

    def cudaGraphInstantiate(graph: object, flags: int) -> tuple[Code, None]:
        return Code.cudaErrorMemoryAllocation, None

    monkeypatch.setattr(cuda, "cudaGraphInstantiate", cudaGraphInstantiate)
    with pytest.raises(DeviceError, match=r"^no memory on the GPU \(cudaGraphInstantiate\); run fewer rows together$"):
        device.capture(lambda: None)  # type: ignore[arg-type]


def test_host_arrays_are_freed_after_their_last_use() -> None:
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    array = device.allocate_host(48).array((2, 3), np.int64)[1:]
    gc.collect()
    assert len(cuda.host) == 1 and array.shape == (1, 3)
    assert device.allocate_host(0).array((0, 4), np.int64).shape == (0, 4)
    assert device.allocate_host(1).array((), np.bool_).shape == ()
    assert len(cuda.host) == 1
    del array, device
    expect_nothing_left(cuda)


def test_staged_arrays_are_one_copy_and_aligned() -> None:
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    staged = StagedArrays(
        device, {"a": (np.bool_, ()), "b": (np.int64, (3, 0)), "c": (np.float32, (2, 70)), "d": (np.int32, (5,))}
    )
    for name, value in (("a", True), ("c", 1.5), ("d", -7)):
        staged.arrays[name][...] = value
    staged.upload()
    device.synchronize()
    assert cuda.kinds() == ["host to device"]
    assert all(staged.address(name) % 256 == 0 for name in "abcd")
    np.testing.assert_array_equal(cuda.array(staged.address("c"), (2, 70), np.float32), np.full((2, 70), 1.5))
    np.testing.assert_array_equal(cuda.array(staged.address("d"), (5,), np.int32), np.full(5, -7))
    cuda.array(staged.address("d"), (5,), np.int32)[:] = range(5)
    staged.download("d", 8)
    device.synchronize()
    assert staged.arrays["d"].tolist() == [0, 1, -7, -7, -7]
    assert cuda.done[-1].nbytes == 8


def test_columns_of_a_staged_array() -> None:
    """The other columns on the GPU stay as they are, as do the other arrays of the block."""
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    staged = StagedArrays(device, {"a": (np.int64, (2, 3, 5)), "b": (np.int32, (4, 6))})
    staged.upload()
    device.synchronize()
    for array in staged.arrays.values():
        array[...] = np.arange(1, array.size + 1).reshape(array.shape)
    for name, columns in (("a", 2), ("b", 0)):
        staged.upload_columns(name, columns)
    device.synchronize()
    wanted = staged.arrays["a"].copy()
    wanted[..., 2:] = 0
    np.testing.assert_array_equal(cuda.array(staged.address("a"), (2, 3, 5), np.int64), wanted)
    assert not cuda.array(staged.address("b"), (4, 6), np.int32).any()
    assert [work.nbytes for work in cuda.done] == [staged.on_host.stop - staged.on_host.start, 2 * 3 * 2 * 8]


def test_a_failed_capture_ends() -> None:
    cuda = CudaInMemory()
    device = CudaDevice(cuda)

    with pytest.raises(DeviceError, match=r"cudaMalloc failed \(cudaErrorStreamCaptureUnsupported\)"):
        device.capture(partial(device.allocate, 8))  # type: ignore[arg-type]
    assert cuda.captured is None and not cuda.graphs
    memory = device.allocate(8)
    graph = device.capture(partial(device.clear, memory.address, 8))
    device.synchronize()
    assert cuda.done == [] and len(cuda.graphs) == 1
    graph.launch()
    graph.launch()
    device.synchronize()
    assert cuda.kinds() == ["clear"] * 2
    del graph, memory, device
    expect_nothing_left(cuda)


def test_unrepeatable_work_is_not_captured() -> None:
    """Host functions, and copies of memory that may be freed before the graph is launched."""
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    own, other = (StagedArrays(device, {"a": (np.int64, (5,))}) for _ in range(2))

    def also_work_of_the_host() -> None:
        own.upload()
        cuda.enqueue(device.stream, Work("host", 0, lambda: None))

    def also_a_copy() -> None:
        own.download("a", 8)
        other.download("a", 8)

    with pytest.raises(DeviceError, match="holds a node of the kind cudaGraphNodeTypeHost, which may not be repeated"):
        device.capture(also_work_of_the_host, own)
    with pytest.raises(DeviceError, match="copies from or to memory of the host that is not the step's own"):
        device.capture(also_a_copy, own)
    assert not cuda.graphs
    graph = device.capture(also_a_copy, own, other)
    graph.launch()
    device.synchronize()
    assert cuda.kinds() == ["device to host"] * 2


def test_memory_released_while_a_stream_is_captured() -> None:
    """Python may collect objects at any time; a release would invalidate the capture."""
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    kept, others = device.allocate(8), [device.allocate(8), device.allocate_host(32)]
    others.append(device.capture(lambda: None))  # type: ignore[arg-type]

    def enqueue() -> None:
        others.clear()
        assert len(cuda.device) == 2 and len(cuda.host) == 1
        device.clear(kept.address, 8)

    graph = device.capture(enqueue)
    assert len(cuda.device) == len(cuda.graphs) == 1 and not cuda.host
    graph.launch()
    device.synchronize()
    assert cuda.kinds() == ["clear"]


@pytest.mark.skipif(gpu_capability() is not None, reason="this machine has a GPU")
def test_a_machine_without_a_gpu() -> None:
    with pytest.raises(DeviceError, match="this machine has no NVIDIA GPU, or no driver for it; run on"):
        open_device()


def test_a_machine_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "gpu_capability", lambda: "80")
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(RuntimeSetupError, match=r"cuda\.bindings, .* is missing .*pip install cuda-bindings"):
        open_device()
