"""The one direction of imports (DESIGN, section 1), read from the source of every file, and what follows from it."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("export", "graph_passes", "plugins", "deploy")

MAY_IMPORT = {
    "export": (
        *("tightbeam.export", "tightbeam.graph_passes", "tightbeam.plugins"),
        # What reads the parts of a bundle, so that an export refuses what no bundle could run; and what commands share.
        *(
            f"tightbeam.deploy.{reader}"
            for reader in ("bundle", "console", "engine", "engines", "generation", "options", "log_mel")
        ),
    ),
    "graph_passes": ("tightbeam.graph_passes", "tightbeam.plugins"),
    "plugins": ("tightbeam.plugins",),
    "deploy": ("tightbeam.deploy", "tightbeam.plugins"),
}
BUILD_ONLY = ("torch", "transformers", "onnx", "onnx_graphsurgeon", "onnx_ir", "onnxscript", "safetensors")
"""What a serving machine does not have. `plugins` may import onnx where `deploy` does not follow it."""
NEVER_AT_MODULE_LEVEL = {"deploy": BUILD_ONLY, "plugins": ("torch", "transformers", "onnx_graphsurgeon")}

BLOCKED_START = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BUILD_ONLY!r}:
            raise ModuleNotFoundError("blocked by the test: " + name, name=name)
sys.meta_path.insert(0, Blocker())
"""


def within(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(allowed + ".")


def imported_modules(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Every imported module: its dotted name, its line, and whether it is imported as soon as the file is."""

    def visit(node: ast.AST, at_import: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child.lineno, at_import
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                if base == "tightbeam" or base in {f"tightbeam.{package}" for package in PACKAGES}:
                    for alias in child.names:  # `from tightbeam.deploy import bundle` names the module in the alias
                        yield f"{base}.{alias.name}", child.lineno, at_import
                else:
                    yield base, child.lineno, at_import
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from visit(ast.Module(body=child.body, type_ignores=[]), False)
                yield from visit(ast.Module(body=child.orelse, type_ignores=[]), at_import)
            else:
                is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, at_import and not is_function)

    return visit(tree, True)


def violations(source: str, package: str, name: str) -> list[str]:
    """What a file of `package` imports and must not, one line each."""
    found = []
    for module, line, at_import in imported_modules(ast.parse(source)):
        first = module.partition(".")[0]
        if module.startswith("."):
            found.append(f"{name}:{line}: relative import {module}; write tightbeam.{package}...")
        elif first in PACKAGES:
            found.append(f"{name}:{line}: bare import of {module}; write tightbeam.{module}")
        elif first == "tightbeam" and not any(within(module, allowed) for allowed in MAY_IMPORT[package]):
            found.append(f"{name}:{line}: {package} may not import {module}")
        elif at_import and first in NEVER_AT_MODULE_LEVEL.get(package, ()):
            found.append(f"{name}:{line}: {package} may not import {module} at module level")
    return found


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_arrows(package: str) -> None:
    found = []
    for path in sources(package):
        found += violations(path.read_text("utf-8"), package, str(path.relative_to(ROOT)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("package", "source", "expected"),
    [
        ("deploy", "import torch", "deploy may not import torch at module level"),
        ("deploy", "try:\n    from transformers.x import y\nexcept ImportError: pass", "may not import transformers.x"),
        ("deploy", "class A:\n    import onnx", "may not import onnx at module level"),
        ("deploy", "from tightbeam.export import export_model", "may not import tightbeam.export.export_model"),
        ("deploy", "def f():\n    from tightbeam import graph_passes", "may not import tightbeam.graph_passes"),
        ("export", "from tightbeam.deploy import Runner", "may not import tightbeam.deploy.Runner"),
        ("export", "import tightbeam.deploy.runner", "may not import tightbeam.deploy.runner"),
        ("export", "import tightbeam.deploy.bundles", "may not import tightbeam.deploy.bundles"),
        (
            "graph_passes",
            "from tightbeam.export.tracing.torch_export import trace",
            "may not import tightbeam.export.tracing.torch_export",
        ),
        ("plugins", "import tightbeam.deploy", "may not import tightbeam.deploy"),
        ("plugins", "from tightbeam.graph_passes import Sizes", "may not import tightbeam.graph_passes.Sizes"),
        ("plugins", "import deploy.runner", "bare import of deploy.runner"),
        ("export", "from .errors import ExportError", "relative import .errors"),
    ],
)
def test_the_checker_sees_a_violation(package: str, source: str, expected: str) -> None:
    found = violations(source, package, "made_up.py")
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("package", "source"),
    [
        (
            "export",
            "import torch\nfrom tightbeam.deploy.bundle.reader import Bundle\nfrom tightbeam.deploy import bundle",
        ),
        ("export", "from tightbeam.graph_passes import Sizes\nfrom tightbeam.plugins import beam_top_k"),
        ("graph_passes", "import onnx\nimport tightbeam.plugins.ops.beam_top_k"),
        ("plugins", "import onnx\nimport numpy as np"),
        ("deploy", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import onnx"),
        ("deploy", "import onnxruntime\nfrom tightbeam.plugins import beam_top_k\nimport tightbeam.deploy.search"),
    ],
)
def test_the_checker_lets_the_allowed_pass(package: str, source: str) -> None:
    assert violations(source, package, "made_up.py") == []


def test_no_module_hides_another() -> None:
    """`python deploy/runner.py` puts deploy/ first on sys.path, so a deploy/queue.py would hide the standard one."""
    taken = set(sys.stdlib_module_names) | set(importlib.metadata.packages_distributions())
    taken -= {"tightbeam", *PACKAGES}
    found = [
        str(path.relative_to(ROOT))
        for package in ("deploy", "export")
        for path in (ROOT / package).iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem in taken
    ]
    assert not found, f"rename {found}: a standard or installed module has that name"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "namespace"), "NO_COLOR": "1", "COLUMNS": "100"}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT / "tests", timeout=120)


def test_deploy_starts_without_the_build_machine_s_packages() -> None:
    result = run_python(BLOCKED_START + "import tightbeam.deploy\nprint(*sorted(sys.modules))")
    assert result.returncode == 0, result.stderr
    loaded = {name.partition(".")[0] for name in result.stdout.split()}
    assert not loaded & set(BUILD_ONLY)


def test_run_model_help_without_the_build_machine_s_packages() -> None:
    help_text = "from tightbeam.deploy.command import main\nsys.argv = ['run-model', '--help']\nmain()"
    result = run_python(BLOCKED_START + help_text)
    assert result.returncode == 0, result.stderr
    assert "--num-beams" in result.stdout


def test_export_model_says_what_a_serving_machine_lacks() -> None:
    export = "from tightbeam.export.command import main\nsys.argv = ['export-model', 'demo']\nmain()"
    result = run_python(BLOCKED_START + export)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: exporting needs the package ")
    assert line.endswith("pip install 'tightbeam[export]'")


def test_deploy_imports_in_under_one_and_a_half_seconds() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = run_python("import tightbeam.deploy")
        seconds.append(time.perf_counter() - start)
        assert result.returncode == 0, result.stderr
    assert min(seconds) < 1.5, f"import tightbeam.deploy took {min(seconds):.2f} s at best of {seconds}"
