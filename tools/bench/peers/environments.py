"""The environments of the other engines: one each, with pinned versions, so that none decides another's."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["ENVIRONMENTS", "OWN", "PeerError", "install", "is_installed", "python_of"]

OWN = "own"
"""The environment that this runs in, which has Tightbeam."""
TORCH = "torch==2.13.0"
EXPORTED_WITH = "transformers==4.57.6"
"""The newest version from which optimum-onnx 0.1 and optimum-intel 2.2 export BART, Marian and Whisper."""
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "transformers": (TORCH, "transformers==5.23.0"),
    "ctranslate2": (TORCH, "transformers==5.23.0", "ctranslate2==4.8.5", "faster-whisper==1.2.1"),
    "llama.cpp": (TORCH, "llama-cpp-python==0.3.36", "gguf==0.19.0", "safetensors==0.8.0"),
    "optimum": (
        *(TORCH, EXPORTED_WITH, "optimum-onnx[onnxruntime]==0.1.0"),
        *("optimum==2.1.0", "onnx==1.23.2", "onnxruntime==1.32.0"),
    ),
    "openvino": (
        *(TORCH, EXPORTED_WITH, "optimum-intel[openvino]==2.2.0", "optimum==2.3.0"),
        *("openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0", "nncf==3.4.0"),
    ),
}
UNWANTED = {"openvino": "torchvision"}
"""A requirement of optimum-intel that only models of images use, and whose CUDA build stops transformers' imports."""
STAMP = "installed.txt"


class PeerError(Exception):
    """A peer that is missing, that fails, or whose tokens are wrong."""


def is_installed(root: Path, name: str) -> bool:
    """True for an environment under ``root`` that has the pinned versions, and for this one."""
    return name == OWN or _installed(root / name) == _wanted(name)


def python_of(root: Path, name: str) -> Path:
    """Return the interpreter of an environment under ``root``; PeerError if it is not installed as pinned."""
    if name == OWN:
        return Path(sys.executable)
    if not is_installed(root, name):
        raise PeerError(
            f"{root / name} has not the versions that this compares; run: "
            f"python -m tools.bench.peers install --environments {root} --only {name}"
        )
    return root / name / "bin" / "python"


def install(root: Path, name: str) -> bool:
    """Make an environment under ``root``, or complete one; False if it is already as pinned."""
    folder = root / name
    if _installed(folder) == _wanted(name):
        return False
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True, symlinks=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    _run([*pip, "install", "--quiet", *ENVIRONMENTS[name]], name)
    if name in UNWANTED:
        _run([*pip, "uninstall", "--quiet", "--yes", UNWANTED[name]], name)
    (folder / STAMP).write_text(_wanted(name), encoding="utf-8")
    return True


def _wanted(name: str) -> str:
    return "\n".join(ENVIRONMENTS[name]) + "\n"


def _installed(folder: Path) -> str:
    stamp = folder / STAMP
    return stamp.read_text(encoding="utf-8") if stamp.is_file() else ""


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip gave no reason"]
        raise PeerError(f"the environment {name} cannot be installed: {said[0]}")
