"""The compilation of kernels by NVRTC, and compiled kernels on disk. Needs no GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.bundles import traces
from support.operators.cases import FOLDERS, GPU_MODULES
from support.operators.cuda_host import kernels
from tightbeam.plugins.tensorrt import compiler
from tightbeam.plugins.tensorrt.compiler import CACHE, CompiledKernel, cache_folder, compile_kernel
from tightbeam.plugins.tensorrt.errors import TensorRTError

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda.bindings is not here", exc_type=ImportError)

OPERATOR, NAME = "ngram_block", "tightbeam::device::ngram_block<float>"
FLOATS = ("float", "__half", "__nv_bfloat16")
ELF = b"\x7fELF"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that a stand-in for NVRTC compiled; it returns no real code."""
    asked: list[str] = []

    def note(nvrtc: Any, headers: Path, operator: str, name: str, capability: str) -> CompiledKernel:
        asked.append(name)
        return CompiledKernel("symbol", f"{name} for {capability}\n".encode() + bytes(range(256)))

    monkeypatch.setattr(compiler, "_compile", note)
    return asked


def operators_of(name: str) -> list[str]:
    """Folders of the operators that have a kernel of this name."""
    if "combine_splits" in name:
        return ["source_attention", "latent_attention"]
    kernel = name.removeprefix("tightbeam::device::")
    return [folder for folder in FOLDERS.values() if kernel.startswith(folder)]


def all_kernels() -> list[tuple[str, str]]:
    """Operator and name of every kernel that a call of an operator can launch."""
    names = [*kernels("search").names, *kernels("attention").names]
    return [(operator, name) for name in names for operator in operators_of(name)]


def one_of_each_template() -> list[tuple[str, str]]:
    """Kernels of each float type in turn."""
    by_template: dict[tuple[str, str], list[str]] = {}
    for operator, name in all_kernels():
        by_template.setdefault((operator, name.partition("<")[0]), []).append(name)
    chosen = []
    for i, ((operator, _), names) in enumerate(by_template.items()):
        of_type = [name for name in names if f"<{FLOATS[i % len(FLOATS)]}" in name]
        chosen.append((operator, (of_type or names)[0]))
    return chosen


def check_compiled(operator: str, name: str, capability: str) -> None:
    found = compile_kernel(operator, name, capability)
    assert found.cubin.startswith(ELF)
    assert found.symbol.encode() in found.cubin
    assert re.search(r"device::(\w+)", name)[1] in found.symbol  # type: ignore[index]


def test_every_operator_has_kernels_in_every_type() -> None:
    found = all_kernels()
    for operator in (FOLDERS[name] for name in GPU_MODULES):
        names = [name for of, name in found if of == operator]
        for kind in FLOATS:
            assert any(f"<{kind}" in name for name in names), (operator, kind)


def test_every_template_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the same sources: NVRTC takes a second for a kernel."""
    monkeypatch.setenv(CACHE, str(traces.cache_folder()))
    chosen = one_of_each_template()
    assert len(chosen) >= 12
    for operator, name in chosen:
        check_compiled(operator, name, "80")


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["75", "80", "86", "89", "90", "100", "120"])
def test_every_kernel_compiles_for(capability: str) -> None:
    """Below 8.0 no plan names a kernel for tensor cores."""
    for operator, name in all_kernels():
        if capability == "75" and "tensor_core" in name:
            continue
        check_compiled(operator, name, capability)


def test_a_kernel_is_compiled_once(compiled: list[str], cache: Path) -> None:
    first = compile_kernel(OPERATOR, NAME, "80")
    assert compile_kernel(OPERATOR, NAME, "80") == first
    assert compiled == [NAME]
    assert len(list(cache.iterdir())) == 1
    assert compile_kernel(OPERATOR, NAME, "86") != first
    assert compile_kernel(OPERATOR, f"{NAME}2", "80") != first
    assert len(compiled) == len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "changed", "longer", "no first line", "empty", "folder"])
def test_a_damaged_cache_file_is_replaced(compiled: list[str], cache: Path, damage: str) -> None:
    first = compile_kernel(OPERATOR, NAME, "80")
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        changed = {
            "cut": whole[:-1],
            "changed": whole[:-1] + bytes([whole[-1] ^ 1]),
            "longer": whole + b"\0",
            "no first line": whole.partition(b"\n")[2],
            "empty": b"",
        }
        path.write_bytes(changed[damage])
    assert compile_kernel(OPERATOR, NAME, "80") == first
    assert len(compiled) == 2
    if damage != "folder":
        assert path.read_bytes() == whole


def test_an_unwritable_cache_folder_is_ignored(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(CACHE, str(tmp_path / "file"))
    assert compile_kernel(OPERATOR, NAME, "80") == compile_kernel(OPERATOR, NAME, "80")
    assert len(compiled) == 2


def test_cache_files_are_written_whole(compiled: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "replace", full)
    compile_kernel(OPERATOR, NAME, "80")
    assert list(cache.iterdir()) == []


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache" / "kernels"
    for empty in ("", None):
        monkeypatch.setenv(CACHE, "") if empty == "" else monkeypatch.delenv(CACHE)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_folder() == tmp_path / "xdg" / "tightbeam" / "kernels"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert cache_folder() == tmp_path / "home" / ".cache" / "tightbeam" / "kernels"


def test_cache_folder_without_a_home(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run with a user id that has no home."""

    def unknown() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(CACHE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert cache_folder() is None
    assert compile_kernel(OPERATOR, NAME, "80").cubin and compiled


def test_cache_key_covers_sources_and_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def key() -> str:
        return compiler._key.__wrapped__(OPERATOR, NAME, "80", "13.0")

    kernel, common = tmp_path / "ops" / OPERATOR / "kernel_cuda.cuh", tmp_path / "common"
    header, other = common / "device.cuh", common / "other.cuh"
    for path, text in ((kernel, '#include "common/device.cuh"\n#include <cuda.h>\n'), (header, "1"), (other, "1")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(compiler, "SOURCES", tmp_path)
    first = key()
    other.write_text("2")
    assert key() == first, "no kernel of the operator includes it"
    header.write_text("2")
    second = key()
    kernel.write_text('#include "common/other.cuh"\n')
    third = key()
    monkeypatch.setattr(compiler, "OPTIONS", ("-std=c++20",))
    assert len({first, second, third, key()}) == 4


@pytest.mark.parametrize(
    ("operator", "name", "capability"),
    [
        (OPERATOR, "tightbeam::device::no_such_kernel<float>", "80"),
        (OPERATOR, "tightbeam::device::ngram_block<double>", "80"),
        (OPERATOR, NAME, "12345"),
        (OPERATOR, NAME, "nonsense"),
        ("no_such_operator", NAME, "80"),
    ],
)
def test_compile_errors_are_one_line(operator: str, name: str, capability: str, cache: Path) -> None:
    with pytest.raises(TensorRTError) as caught:
        compile_kernel(operator, name, capability)
    message = str(caught.value)
    assert f"NVRTC cannot compile {name} for compute capability {capability}: " in message
    assert "\n" not in message
    assert not cache.exists()


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc

    def missing() -> None:
        raise RuntimeError("no libnvrtc")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    compiler._nvrtc.cache_clear()
    with pytest.raises(TensorRTError, match=r"NVRTC.* cannot be loaded \(no libnvrtc\); pip install 'tightbeam\["):
        compile_kernel(OPERATOR, NAME, "80")


def test_without_the_headers_of_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import cuda.pathfinder

    for found in (None, str(tmp_path)):
        monkeypatch.setattr(cuda.pathfinder, "find_nvidia_header_directory", lambda name, found=found: found)
        compiler._cuda_headers.cache_clear()
        with pytest.raises(TensorRTError, match=r"CUDA's headers \(cuda_fp16.h\).* missing; pip install 'tightbeam\["):
            compile_kernel(OPERATOR, NAME, "80")
