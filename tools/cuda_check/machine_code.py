"""Machine code of a kernel: compiled by NVRTC and disassembled by nvdisasm, its counts kept in ``build/cuda-check``."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tightbeam.plugins.tensorrt.compiler import CACHE, compile_kernel

__all__ = ["Counts", "counts_in", "counts_of", "nvdisasm"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cuda-check"
PACKAGE = "nvidia-cuda-nvdisasm"
REGISTERS = re.compile(r"EIATTR_REGCOUNT.*?\.word\s+index@\((.*?)\).*?\.word\s+(0x[0-9a-f]+)", re.DOTALL)
SECTION = re.compile(r"^\s*\.section\s+\.(?:text\.)?(\S+?),")
CODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
SPILLS = ("LDL", "STL")
"""Loads and stores of a thread's local memory, which holds the registers that do not fit."""
BYTE_LOAD = re.compile(r"LDS\b.*\.[US]8\b")


@dataclass(frozen=True)
class Counts:
    """Counts of a kernel's machine code.

    Attributes
    ----------
    instructions : int
        Instructions of the whole code.
    registers : int
        Registers of a thread.
    spills : int
        Loads and stores of spilled registers.
    byte_loads : int
        Loads of single bytes from shared memory.
    """

    instructions: int
    registers: int
    spills: int
    byte_loads: int


@functools.cache
def counts_of(folder: str, name: str, capability: int) -> Counts:
    """Compile a kernel and count its machine code.

    Parameters
    ----------
    folder : str
        Folder of the operator below ``plugins/ops``.
    name : str
        The kernel, a C++ expression.
    capability : int
        Compute capability: 90 is 9.0.

    Raises
    ------
    TensorRTError
        The kernel does not compile.
    SystemExit
        nvdisasm is missing.
    """
    os.environ.setdefault(CACHE, str(BUILD))
    kernel = compile_kernel(folder, name, str(capability))
    path = BUILD / "counts" / f"{hashlib.sha256(kernel.cubin).hexdigest()}.json"
    if path.is_file():
        return Counts(**json.loads(path.read_text("utf-8")))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.cubin)
        file.flush()
        printed = subprocess.run([nvdisasm(), file.name], capture_output=True, text=True, check=True).stdout
    counts = counts_in(printed, kernel.symbol)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(counts)), "utf-8")
    draft.replace(path)
    return counts


def counts_in(disassembly: str, symbol: str) -> Counts:
    """Count the instructions of one kernel in nvdisasm's output. Raises ValueError if it has none."""
    registers = next((int(found[2], 16) for found in REGISTERS.finditer(disassembly) if found[1] == symbol), 0)
    opcodes, is_inside = [], False
    for line in disassembly.splitlines():
        if section := SECTION.match(line):
            is_inside = section[1] == symbol and ".text." in line
        elif is_inside and (code := CODE.search(line)):
            opcodes.append(code[1])
    if not opcodes:
        raise ValueError(f"nvdisasm printed no instruction of {symbol}; expected its code")
    spills = sum(opcode.partition(".")[0] in SPILLS for opcode in opcodes)
    return Counts(len(opcodes), registers, spills, sum(bool(BYTE_LOAD.match(opcode)) for opcode in opcodes))


def nvdisasm() -> str:
    """Find nvdisasm: the toolkit's, or the package's, which is installed or lies in ``build/cuda-check/python``.

    Raises SystemExit, naming the package, if there is none.
    """
    folders = [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    for place in (*sys.path, str(BUILD / "python")):
        folders += Path(place).glob("nvidia/*/bin") if place else []
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = shutil.which("nvdisasm", path=path)
    if found is None:
        raise SystemExit(
            f"error: nvdisasm is missing; expected the CUDA toolkit's or the package {PACKAGE}: "
            f"python -m pip install --target {BUILD.relative_to(ROOT) / 'python'} {PACKAGE}"
        )
    return found
