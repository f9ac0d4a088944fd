"""The installed TensorRT, the GPUs for which it builds, and errors for missing packages. Needs no GPU."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tightbeam.plugins.tensorrt import distribution, launcher, native
from tightbeam.plugins.tensorrt.distribution import CURRENT, TensorRT, in_order, load_tensorrt
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.launcher import CudaLauncher, default_launcher
from tightbeam.plugins.tensorrt.native import Gpu, plan

CAPABILITIES = SimpleNamespace(__members__=dict.fromkeys(("NONE", "CURRENT", "SM120", "SM80")))
RTX = TensorRT(SimpleNamespace(__version__="1.7", ComputeCapability=CAPABILITIES), "tensorrt_rtx")
PLAIN = TensorRT(SimpleNamespace(__version__="10.9"), "tensorrt")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (distribution, launcher):
        monkeypatch.setattr(module, "gpu_capability", lambda: None)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "gpu_capability", lambda: "90")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear the caches of loaded modules before and after each test."""
    caches: list[Any] = [load_tensorrt, native._library, default_launcher]
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_capabilities() -> None:
    assert RTX.capabilities == ("80", "120")
    assert PLAIN.capabilities == ()


def test_capabilities_of_the_installed_tensorrt() -> None:
    try:
        found = load_tensorrt()
    except TensorRTError as error:
        pytest.skip(str(error))
    if not found.is_rtx:
        pytest.skip("tensorrt builds only for the GPU of this machine")
    assert {"80", "86", "89", "120"} <= set(found.capabilities)
    found.resolve_capabilities(found.capabilities)


def test_capabilities_of_each_distribution(one_gpu: None) -> None:
    assert RTX.resolve_capabilities(["80"]) == ("80",)
    assert RTX.resolve_capabilities(["120", "80"]) == ("120", "80")
    assert PLAIN.resolve_capabilities([CURRENT]) == ("90",)
    assert PLAIN.resolve_capabilities(["90"]) == ("90",)


@pytest.mark.parametrize("wanted", ["91", "sm80", "8.0", "", "CURRENT", "NONE"])
def test_an_unknown_capability(one_gpu: None, wanted: str) -> None:
    with pytest.raises(TensorRTError) as caught:
        RTX.resolve_capabilities(["80", wanted])
    assert str(caught.value) == (
        f"no engine can be built for compute capability {wanted!r}: TensorRT-RTX 1.7 has 80, 120; "
        "pass one of 80, 120, current"
    )
    with pytest.raises(TensorRTError, match=r"TensorRT 10.9 builds only for the GPU of this machine; pass .* 90, curr"):
        PLAIN.resolve_capabilities(["80" if wanted == "90" else wanted])


def test_capabilities_are_normalised() -> None:
    assert in_order(["120", "sm_86", "8.0", " SM89", "12.1", "current", "x"]) == [
        *("x", "80", "86", "89", "120", "121", "current")
    ]


def test_a_gpu_unsupported_by_tensorrt_rtx(one_gpu: None) -> None:
    with pytest.raises(TensorRTError, match=r"no engine .* '90': .*, current; an H100 or H200 \(90\) needs"):
        RTX.resolve_capabilities(["90"])
    with pytest.raises(TensorRTError, match=r"of this machine has compute capability 90, and .* has 80, 120; an H100"):
        RTX.resolve_capabilities([CURRENT])


def test_current_excludes_other_capabilities(one_gpu: None) -> None:
    with pytest.raises(TensorRTError, match="the capability 'current' cannot be combined with others; pass it alone"):
        RTX.resolve_capabilities(["80", CURRENT])


def test_current_needs_a_gpu(no_gpu: None) -> None:
    RTX.resolve_capabilities(["80"])
    with pytest.raises(TensorRTError, match=r"'current' needs a GPU, and this machine has none; name a .*: 80, 120"):
        RTX.resolve_capabilities([CURRENT])
    with pytest.raises(TensorRTError, match=r"'current' needs a GPU, and this machine has none$"):
        PLAIN.resolve_capabilities([CURRENT])


class Driver:
    """``libcuda.so.1`` with a GPU of compute capability 8.6. Its functions return the given codes."""

    def __init__(self, started: int = 0, found: int = 0, asked: int = 0) -> None:
        self.started, self.found, self.asked = started, found, asked

    def cuInit(self, flags: int) -> int:
        return self.started

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return self.found

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = {75: 8, 76: 6}[attribute]
        return self.asked


@pytest.mark.parametrize(
    ("driver", "expected"),
    [(Driver(), "86"), (Driver(started=100), None), (Driver(found=101), None), (Driver(asked=1), None), (None, None)],
)
def test_capability_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, driver: Driver | None, expected: str | None
) -> None:
    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert distribution.gpu_capability() == expected


def only(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Let the import of TensorRT's modules return these; one that is an exception is raised."""
    real = importlib.import_module

    def load(name: str) -> Any:
        if not name.startswith("tensorrt"):
            return real(name)
        found = modules.get(name, ImportError(f"No module named {name!r}"))
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(importlib, "import_module", load)


def module(**contents: Any) -> ModuleType:
    found = ModuleType("tensorrt")
    found.__dict__.update(contents)
    return found


def test_tensorrt_is_preferred_to_tensorrt_rtx(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorrt = module(Builder=object, __version__="10.9")
    only(monkeypatch, tensorrt=tensorrt, tensorrt_rtx_bindings=module(Builder=object), tensorrt_rtx_libs=module())
    found = load_tensorrt()
    assert (found.trt, found.distribution, found.version, found.is_rtx) == (tensorrt, "tensorrt", "10.9", False)


def test_without_tensorrt(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, tensorrt=module(), tensorrt_rtx_libs=OSError("libx.so: no such file\nsecond line"))
    with pytest.raises(TensorRTError) as caught:
        load_tensorrt()
    assert str(caught.value) == (
        "TensorRT cannot be loaded (tensorrt: tensorrt has no Builder; tensorrt_rtx: libx.so: no such file); "
        "pip install 'tightbeam[tensorrt]', or install tensorrt"
    )


def test_without_the_library_that_names_tensorrt_rtx(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, tensorrt_rtx_bindings=module(Builder=object), tensorrt_rtx_libs=module())
    monkeypatch.setattr(distribution, "rtx_name_library", lambda: None)
    with pytest.raises(TensorRTError, match=r"libtensorrt_rtx_name.so was not compiled.* Install a C\+\+ compiler"):
        load_tensorrt()


def test_without_our_library(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "tensorrt_library", lambda: None)
    for call in (native._library, lambda: plan("NGramBlock", "float32", {}, {}, {}, Gpu(1, 1), 0)):
        with pytest.raises(
            TensorRTError, match=r"libtightbeam_tensorrt.so was not compiled.* Install a C\+\+ compiler"
        ):
            call()


@pytest.mark.parametrize("make", [CudaLauncher, default_launcher])
def test_kernels_need_a_gpu(fresh: None, no_gpu: None, make: Any) -> None:
    pytest.importorskip("cuda.bindings.driver", exc_type=ImportError)
    with pytest.raises(TensorRTError) as caught:
        make()
    assert str(caught.value) == "the kernels need a GPU, and this machine has no GPU or no driver for it"


def test_kernels_need_the_bindings_of_cuda(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(TensorRTError, match=r"the kernels cannot be launched without cuda.bindings .*; pip install"):
        CudaLauncher()
