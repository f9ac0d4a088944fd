"""The environment in which glibc requests huge pages, and that it does."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tightbeam.deploy.runtimes.process.environment import with_huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import ctypes
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
address, inside = malloc(64 << 20), False
for line in open("/proc/self/smaps"):
    first, _, rest = line.partition(" ")
    if "-" in first:
        begin, end = (int(number, 16) for number in first.split("-"))
        inside = begin <= address < end
    elif inside and first == "VmFlags:":
        print("hg" in rest.split())
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=1", "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_variable_is_added_to_what_it_says_already(given: str | None, expected: str) -> None:
    before = {"OTHER": "1"} if given is None else {"OTHER": "1", "GLIBC_TUNABLES": given}
    assert with_huge_pages(before) == {"OTHER": "1", "GLIBC_TUNABLES": expected}


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not SETTING.is_file() or "[madvise]" not in SETTING.read_text(),
    reason="needs glibc, and huge pages for memory that requests them",
)
def test_large_allocation_requests_huge_pages() -> None:
    def requested(environment: dict[str, str]) -> str:
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    without = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    assert requested(without) == "False"
    assert requested(with_huge_pages(without)) == "True"
