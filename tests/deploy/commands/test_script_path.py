"""`python deploy/runner.py` runs in a clone that is not installed, and no folder of deploy hides a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.slow_cases import slow_unless

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
NAMES = sorted(
    {"triton"}
    | {path.name for path in DEPLOY.iterdir() if (path / "__init__.py").exists()}
    | {path.stem for path in DEPLOY.glob("*.py") if path.stem != "__init__"}
)
REPORT = f"""
import atexit, importlib.util, json, sys

def report():
    import tightbeam.deploy.commands.run_model as command
    found = {{name: importlib.util.find_spec(name).origin for name in {NAMES!r}}}
    print(json.dumps([found, command.__file__]), file=sys.stderr)

atexit.register(report)
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH: packages with the names of deploy's modules, and a report of what is imported."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "sitecustomize.py").write_text(REPORT)
    return tmp_path


@pytest.mark.parametrize(
    ("how",),
    slow_unless(
        [(how,) for how in ("elsewhere", "in_deploy", "safe_path", "symlink", "through_a_linked_folder")],
        lambda how: how in ("in_deploy", "safe_path", "through_a_linked_folder"),
    ),
)
def test_folders_of_deploy_hide_no_package(packages: Path, how: str) -> None:
    (packages / "run.py").symlink_to(DEPLOY / "runner.py")
    (packages / "linked").symlink_to(DEPLOY)
    script, options, folder = DEPLOY / "runner.py", [], packages
    if how == "in_deploy":
        script, folder = Path("runner.py"), DEPLOY
    elif how == "safe_path":
        options = ["-P"]
    elif how == "symlink":
        script = packages / "run.py"
    elif how == "through_a_linked_folder":
        script = Path("linked", "runner.py")
    done = subprocess.run(
        [sys.executable, *options, str(script), "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(packages)},
        cwd=folder,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "--num-beams" in done.stdout
    found, command = json.loads(done.stderr.splitlines()[-1])
    assert found == {name: str(packages / name / "__init__.py") for name in NAMES}
    assert Path(command).resolve() == DEPLOY / "commands" / "run_model.py"


def test_a_clone_that_is_not_installed() -> None:
    command = [sys.executable, "-S", str(DEPLOY / "runner.py"), "--help"]  # -S: no .pth file, so no editable install
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    packages = str(Path(np.__file__).parents[1])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**environment, "PYTHONPATH": packages}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "--num-beams" in done.stdout
    bare = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert bare.returncode == 1
    (line,) = bare.stderr.splitlines()
    assert line.startswith("error: run-model needs the package ") and line.endswith("not installed; pip install .")
