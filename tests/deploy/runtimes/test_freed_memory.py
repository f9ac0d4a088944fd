"""Large blocks that a server frees go back to the system at once."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy.runtimes.process.arena import ONE_NUMBER
from tightbeam.deploy.runtimes.process.environment import SERVER_MALLOC
from tightbeam.deploy.serving.server.triton_server import TritonServer

PROGRAM = """
import ctypes, sys
from tightbeam.deploy.runtimes.process.freed_memory import return_large_blocks
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype, library.malloc.restype = Info, ctypes.c_void_p
library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
if sys.argv[1] == "large":
    return_large_blocks()
library.free(library.malloc(16 << 20))
before = library.mallinfo2().hblkhd
held = library.malloc(6 << 20)
print(library.mallinfo2().hblkhd > before)
"""
"""A block of 16 MiB raises the size from which glibc takes a block of its own; prints if one of 6 MiB still is one."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize(("mode", "own"), [("large", "True"), ("default", "False")])
def test_large_blocks_are_blocks_of_their_own(mode: str, own: str) -> None:
    command = [sys.executable, "-c", PROGRAM, mode]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == own


BATCHES = """
import ctypes, sys
from tightbeam.deploy import Runner
from tightbeam.deploy.runtimes.process.freed_memory import return_large_blocks
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
return_large_blocks()
runners = [Runner.load(sys.argv[1], threads=1) for _ in range(2)]
def blocks_after(rows):
    for runner in runners:
        runner.generate([[5] * 20] * rows, max_new_tokens=3, num_beams=4)
    held = library.mallinfo2().hblkhd
    for runner in runners:
        runner.model.runtime.release_buffers()
    return held, library.mallinfo2().hblkhd
_, small = blocks_after(1)
held, released = blocks_after(1000)
print(held - small, released - small)
"""
"""Prints the bytes of large blocks after a large batch of two models, before and after the buffers are released."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_the_working_memory_of_a_large_batch_is_given_back(bundles: BundleCache) -> None:
    command = [sys.executable, "-c", BATCHES, str(bundles("dedup"))]
    held, released = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert held > 8 << 20 and released < held / 2  # a region with one piece in use stays


def test_the_graph_that_empties_the_arena_is_one_of_onnx() -> None:
    model = onnx.load_model_from_string(ONE_NUMBER)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Identity"]


def test_a_server_has_the_settings_unless_the_user_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SERVER_MALLOC:
        monkeypatch.delenv(name, raising=False)
    server = TritonServer(Path("tritonserver"), Path("bin"), None, ())
    assert server.environment().items() >= SERVER_MALLOC.items()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert "MALLOC_ARENA_MAX" not in server.environment()
