"""The report of ``tightbeam info``: the things that this machine can run, and those that the rest needs."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort
from packaging.requirements import Requirement

import tightbeam
from tightbeam.deploy.runtimes.process.cores import allowed_cores
from tightbeam.plugins.instruction_set import INSTRUCTION_SETS, instruction_set
from tightbeam.plugins.library import cpu_library, cuda_library

__all__ = ["machine_facts", "machine_report"]

EXTRAS = {
    "export": "export checkpoints, build engines",
    "gguf": "export GGUF files",
    "tokenizer": "put a tokenizer into the one graph",
    "audio": "read audio and video files",
    "image": "read images",
    "http": "serve over HTTP",
    "detect": "find the language of a text",
    "documents": "translate documents",
    "cuda": "reach a GPU with ONNX Runtime",
    "tensorrt": "build and run TensorRT engines",
    "notebook": "run the notebook of examples/",
    "triton": "write a repository for Triton",
    "server": "serve it with Triton on this machine",
    "ray": "run files on many machines",
}
"""Extra of the package -> what it is for."""
TENSORRT = ("tensorrt", "tensorrt_rtx_cu13_bindings")
GPU_PROVIDER = "CUDAExecutionProvider"
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader")


def machine_facts() -> dict[str, Any]:
    """Collect what this machine has.

    Returns
    -------
    dict
        Facts for JSON: versions, processor, libraries of kernels, providers, GPUs, and for each extra the packages that
        it lacks; None in place of the list if the extra is not for this machine.
    """
    found = {name: _version(name) for name in TENSORRT}
    return {
        "tightbeam": tightbeam.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": allowed_cores(),
        "cpu_library": _path(cpu_library),
        "instruction_set": instruction_set(),
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
        "gpus": _gpus(),
        "cuda_library": _path(cuda_library),
        "tensorrt": next((f"{name} {version}" for name, version in found.items() if version), None),
        "extras": {name: _lacking(name) for name in EXTRAS},
    }


def machine_report(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the report: a word, which is empty on lines that continue, and a text."""
    yield "tightbeam", f"{facts['tightbeam']}, Python {facts['python']}, {facts['system']}, {facts['machine']}"
    yield "processor", f"{facts['processor']}, {facts['cores']} of its cores for this process"
    if facts["cpu_library"] is None:
        yield "kernels", "none: the functions inside a model run in their place, slower"
    else:
        name = facts["instruction_set"]
        yield (
            "kernels",
            f"{name}: {INSTRUCTION_SETS[name]}"
            if name
            else f"{facts['cpu_library']} cannot be loaded, or is older than this command",
        )
    yield "onnxruntime", f"{facts['onnxruntime']}: {', '.join(facts['providers'])}"
    yield from _lines("GPU", facts["gpus"] or ["none that nvidia-smi shows"])
    yield "TensorRT", facts["tensorrt"] or "not installed"
    installed = [name for name, lacking in facts["extras"].items() if lacking == []]
    yield "extras", ", ".join(installed) or "none"
    yield from _lines("to add", list(_advice(facts)))


def _advice(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what to install, and what it is for."""
    if facts["cpu_library"] is None:
        yield "kernels for this processor: install GCC 12 or Clang, then Tightbeam again"
    if facts["gpus"] and GPU_PROVIDER not in facts["providers"]:
        yield "bundles on the GPU: pip uninstall onnxruntime, then pip install onnxruntime-gpu"
    if facts["gpus"] and facts["cuda_library"] is None:
        yield "kernels for the GPU: with nvcc, pip install '.[cuda]' -C cmake.define.TIGHTBEAM_CUDA=ON in a clone"
    for name, lacking in facts["extras"].items():
        if lacking:
            yield f"{EXTRAS[name]}: pip install 'tightbeam[{name}]' (lacks {', '.join(lacking)})"
        elif lacking is None:
            yield f"{EXTRAS[name]}: tightbeam[{name}] is not for this system, processor or Python"


def _lines(word: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for i, text in enumerate(texts):
        yield "" if i else word, text


def _lacking(extra: str) -> list[str] | None:
    """List the packages of an extra that are not installed, or not in a version that it accepts."""
    try:
        listed = [Requirement(text) for text in importlib.metadata.requires("tightbeam") or ()]
    except importlib.metadata.PackageNotFoundError:  # run from a clone that is not installed
        listed = []
    own = [each for each in listed if each.marker is not None and f'extra == "{extra}"' in str(each.marker)]
    fitting = [each for each in own if each.marker is not None and each.marker.evaluate({"extra": extra})]
    if not fitting:
        return None
    versions = {each.name: _version(each.name) for each in fitting}
    return [
        each.name
        for each in fitting
        if (version := versions[each.name]) is None or not each.specifier.contains(version, prereleases=True)
    ]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _path(find: Any) -> str | None:
    """Return the path of a library; the text of the environment variable's error counts as none."""
    try:
        path: Path | None = find()
    except FileNotFoundError:
        return None
    return None if path is None else str(path)


def _processor() -> str:
    """Return the processor's name; that of its architecture if the system does not say more."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """List the GPUs of NVIDIA's driver, each with memory, driver and compute capability."""
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
