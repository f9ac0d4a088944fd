"""Imports of a process when it starts; `make lint` checks which module may import which (import-linter)."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tightbeam

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
"""Command -> its module and function."""
BUILD_ONLY = ("torch", "transformers", "onnx", "onnx_graphsurgeon", "onnx_ir", "onnxscript", "safetensors")
"""Packages that a serving machine does not have."""
OPTIONAL = (
    *("av", "scipy", "soundfile", "tensorrt", "tensorrt_rtx", "cuda", "tritonclient", "triton_python_backend_utils"),
    *("ray", "pyarrow", "pandas"),
)
"""Packages of extras, and Triton's own."""

BLOCK = """
import importlib, pkgutil, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError("blocked by the test: " + name, name=name)
sys.meta_path.insert(0, Blocker())
"""
IMPORT_ALL = """
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if module.name not in {left_out!r}:
        importlib.import_module(module.name)
"""
HELP_AND_VERSION = """
sys.argv = ["script", "--help"]
try:
    main()
except SystemExit as ended:
    print(f"ended: {ended.code or 0}")
sys.argv = ["script", "--version"]
main()
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "namespace"), "NO_COLOR": "1", "COLUMNS": "100"}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT / "tests", timeout=120)


@pytest.mark.parametrize(
    ("package", "blocked", "left_out"),
    [
        ("tightbeam.deploy", BUILD_ONLY + OPTIONAL, ("tightbeam.deploy.serving.model",)),  # Triton's own entry point
        ("tightbeam.plugins", ("torch", "transformers", "onnx_graphsurgeon", *OPTIONAL), ()),
    ],
)
def test_no_module_needs_more_than_its_machine_has(
    package: str, blocked: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    result = run_python(BLOCK.format(names=blocked) + IMPORT_ALL.format(package=package, left_out=left_out))
    assert result.returncode == 0, result.stderr


def test_deploy_imports_little_when_it_starts() -> None:
    result = run_python("import sys, tightbeam.deploy\nprint(*sorted(sys.modules))")
    assert result.returncode == 0, result.stderr
    loaded = {name.partition(".")[0] for name in result.stdout.split()}
    assert not loaded & {*BUILD_ONLY, *OPTIONAL, "typer", "rich"}


@pytest.mark.parametrize("command", SCRIPTS)
def test_help_and_version_without_the_build_machine_s_packages(command: str) -> None:
    module, _, function = SCRIPTS[command].partition(":")
    start = f"from {module} import {function} as main\n"
    result = run_python(BLOCK.format(names=BUILD_ONLY) + start + HELP_AND_VERSION)
    assert (result.returncode, result.stderr) == (0, "")
    shown, version = result.stdout.split("ended: 0\n")
    assert f"Usage: {command} " in shown and "--version" in shown
    assert version == f"{command} {tightbeam.__version__} (tightbeam)\n"


def test_export_model_names_the_package_that_a_serving_machine_lacks() -> None:
    export = "from tightbeam.export.command import main\nsys.argv = ['export-model', 'demo']\nmain()"
    result = run_python(BLOCK.format(names=BUILD_ONLY) + export)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: exporting needs the package ")
    assert line.endswith("pip install 'tightbeam[export]'")
