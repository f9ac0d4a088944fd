"""Stand-ins for CUDA's runtime, driver and math libraries, in which kernels do nothing.

With them ONNX Runtime's CUDA provider opens sessions and runs them on a machine without a GPU. The placement of nodes,
the inputs on the host and the calls of a step are those on a GPU. The numbers are not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["make_stand_in"]

RUNTIME = Path(__file__).parent / "cuda_stand_in" / "runtime.c"
HANDLES = re.compile(r"(cublas|cublasLt|curand)Create(Generator)?(_v2)?$")
"""Functions that create a handle; only the address of a handle is used."""


def make_stand_in(folder: Path, users: Iterable[Path], include: Path) -> None:
    """Write into ``folder`` the CUDA libraries that ``users`` link to; ``include``: the folder of CUDA's headers.

    The name of each undefined symbol ends with its library, such as cudaFree@libcudart.so.13.
    """
    wanted: dict[str, set[str]] = {}
    for user in users:
        for library in re.findall(r"\[(libcu\w+\.so\.\d+)\]", _output_of("readelf", "-d", str(user))):
            wanted.setdefault(library, set())
        undefined = _output_of("nm", "-D", "--undefined-only", str(user))
        for symbol, library in re.findall(r"(\w+)@(libcu\w+\.so\.\d+)", undefined):
            wanted.setdefault(library, set()).add(symbol)
        for symbol in re.findall(r" (cu[A-Z]\w+)$", undefined, re.MULTILINE):  # the driver's have no version
            wanted.setdefault("libcuda.so.1", set()).add(symbol)
    written = set(re.findall(r"(?<=[ *(])(_*cuda[A-Z]\w+)(?=[(,])", RUNTIME.read_text()))
    for library, symbols in wanted.items():
        is_runtime = library.startswith("libcudart")
        rest = {symbol: _body(symbol) for symbol in sorted(symbols) if not (is_runtime and symbol in written)}
        _compile(folder, library, rest, [RUNTIME] if is_runtime else [], include)


def _output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _body(symbol: str) -> str:
    return "*made = malloc(64); return 0;" if HANDLES.match(symbol) else "return 0;"


def _compile(folder: Path, library: str, rest: Mapping[str, str], sources: list[Path], include: Path) -> None:
    source, versions = folder / f"{library}.c", folder / f"{library}.versions"
    functions = (f"int {name}(void** made) {{ {body} }}\n" for name, body in rest.items())
    source.write_text(f"#include <stdlib.h>\n{''.join(functions)}")
    versions.write_text(f"{library} {{ global: *; }};\n" if library != "libcuda.so.1" else "{ global: *; };\n")
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    command = [compiler, "-shared", "-fPIC", "-O1", f"-I{include}", f"-Wl,-soname,{library}"]
    command += [f"-Wl,--version-script={versions}", *map(str, sources), str(source), "-lpthread"]
    subprocess.run([*command, "-o", str(folder / library)], check=True)
