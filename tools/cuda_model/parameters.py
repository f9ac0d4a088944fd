"""Values of a planned kernel's parameters, by name: read from the memory that the C++ launch plan made for them.

The structs' fields come from the headers, so that no plan and no layout is written down here a second time.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

from tightbeam.plugins.tensorrt import compiler
from tightbeam.plugins.tensorrt.native import Kernel

__all__ = ["arguments_of", "sources_of", "template_values"]

SIMPLE: dict[str, type[Any]] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
}
FIELD = re.compile(r"^\s*(?:const )?((?:unsigned )?(?:long long)|[\w:]+)(<\w+>)?(\s*\*?\s*[^();{}=]*);", re.MULTILINE)


@functools.cache
def sources_of(folder: str) -> str:
    """Text of the headers that an operator's kernels are made of."""
    root = Path(compiler.SOURCES)
    files = [*sorted((root / "ops" / folder).glob("*.*h")), *sorted((root / "kernels" / "cuda").glob("*.*h"))]
    if folder == "beam_top_k":
        files.append(root / "ops" / "ngram_block" / "kernel_cuda.cuh")
    return re.sub(r"//.*", "", "\n".join(path.read_text() for path in files if path.suffix in (".h", ".cuh")))


def template_values(folder: str, name: str) -> dict[str, int]:
    """Values of a kernel's template parameters but for its type, such as ``{"TILES": 2}``."""
    found = re.match(r"(?:\w+::)*(\w+)<(.*)>$", name)
    if found is None:
        return {}
    declared = re.search(
        rf"template <([^<>]*)>\s*__global__\s+void\s[^;{{}}]*?\b{found[1]}\(", sources_of(folder), re.DOTALL
    )
    if declared is None:
        raise ValueError(f"{name}: its declaration is not in the headers of plugins/ops/{folder}")
    names = [one.split()[-1] for one in declared[1].split(",")]
    given = [one.strip() for one in found[2].split(",")]
    pairs = zip(names, given, strict=True)
    return {key: _value(text) for key, text in pairs if re.fullmatch(r"-?\d+|true|false|\(bool\)[01]", text)}


def _value(text: str) -> int:
    return {"true": 1, "false": 0}.get(text, 0) if text in ("true", "false") else int(text.removeprefix("(bool)"))


def arguments_of(folder: str, kernel: Kernel) -> dict[str, float]:
    """Numbers among the parameters of a kernel, by the names of the parameters and of their fields.

    Parameters
    ----------
    folder
        Folder of the operator below ``plugins/ops``.
    kernel
        Of the newest plan of this thread, whose memory still stands.
    """
    bare = kernel.name.partition("<")[0].rpartition("::")[2]
    text = sources_of(folder)
    declared = re.search(rf"\bvoid\s[^;{{}}]*?\b{bare}\(([^()]*)\)", text, re.DOTALL)
    if declared is None:
        raise ValueError(f"{kernel.name}: its declaration is not in the headers of plugins/ops/{folder}")
    addresses = ctypes.cast(kernel.parameters, ctypes.POINTER(ctypes.c_void_p))
    found: dict[str, float] = {}
    for index, parameter in enumerate(declared[1].split(",")):
        kind, _, name = parameter.strip().rpartition(" ")
        kind = kind.removeprefix("const ").strip()
        address = addresses[index]
        if address is None:
            continue
        if kind in SIMPLE:
            found.setdefault(name, SIMPLE[kind].from_address(address).value)
        elif not kind.endswith("*"):
            read = _struct(kind.partition("<")[0], text).from_address(address)
            for field, type_, *_ in read._fields_:
                if type_ is ctypes.c_void_p:
                    found.setdefault(f"{field}_given", float(bool(getattr(read, field))))
                elif not issubclass(type_, ctypes.Structure):
                    found.setdefault(field, getattr(read, field))
    return found


@functools.cache
def _struct(name: str, text: str) -> type[ctypes.Structure]:
    """The ctypes struct of a plain C++ one."""
    body = re.search(rf"\bstruct {name} {{(.*?)\n}};", text, re.DOTALL)
    if body is None:
        raise ValueError(f"struct {name} is not in the headers")
    fields: list[tuple[str, type[Any]]] = []
    for kind, _, declared_names in FIELD.findall(body[1]):
        for declared in declared_names.split(","):
            pointer, bare = "*" in declared, declared.replace("*", "").strip()
            if not re.fullmatch(r"\w+", bare):
                raise ValueError(f"struct {name}: {declared!r} is not understood")
            type_ = ctypes.c_void_p if pointer else SIMPLE.get(kind) or _struct(kind, text)
            fields.append((bare, type_))
    return type(name, (ctypes.Structure,), {"_fields_": fields})
