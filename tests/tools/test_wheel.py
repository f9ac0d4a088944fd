"""The wheel of `make wheel`, in an environment that has neither a compiler nor torch."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import tightbeam
from tightbeam.export import export_model
from tightbeam.plugins.library import cpu_library
from tools.images import IMAGES, USER, make_root

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "export" / "demo"
COMMANDS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
LINES = 6
REPORT = """
import importlib.metadata, json, sys, tightbeam
from tightbeam.deploy import Runner
from tightbeam.plugins.library import cpu_library, tensorrt_library
runner = Runner.load(sys.argv[1])
print(json.dumps({
    "version": tightbeam.__version__,
    "metadata": importlib.metadata.version("tightbeam"),
    "libraries": [str(cpu_library()), str(tensorrt_library())],
    "mapped": str(cpu_library()) in open("/proc/self/maps").read(),
}))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.system() != "Linux", reason="the wheel is for Linux"),
]


class BareMachine:
    """A virtual environment with the wheel and what it depends on, and a path with nothing else."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC", "CXX", "CUDACXX")}
        self.environment = kept | {"PATH": str(folder / "bin"), "COLUMNS": "100", "NO_COLOR": "1"}
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        begin = time.monotonic()
        install = ["pip", "install", "--quiet", "--only-binary", ":all:", "-c", ROOT / "constraints.txt", wheel]
        assert self.run("python", "-m", *install).returncode == 0
        print(f"installed in {time.monotonic() - begin:.1f} s")

    def run(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / command, *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "tools.wheel", folder], check=True, cwd=ROOT)
    (wheel,) = folder.iterdir()
    return wheel


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> BareMachine:
    return BareMachine(tmp_path_factory.mktemp("machine"), wheel)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "demo"
    export_model(str(DEMO), folder, variant="dedup")
    return folder


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return (DEMO / "examples.txt").read_text().splitlines()[:LINES]


@pytest.fixture(scope="module")
def expected(lines: list[str]) -> list[list[int]]:
    """The tokens of model.generate, line by line."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(DEMO)
    with torch.no_grad():
        return [model.generate(**tokenizer(line, return_tensors="pt"))[0].tolist() for line in lines]


def test_tag_is_that_of_many_machines(wheel: Path) -> None:
    assert wheel.name.startswith(f"tightbeam-{tightbeam.__version__}-py3-none-manylinux_2_")


def test_wheel_says_what_is_compiled_into_it(wheel: Path) -> None:
    """The SBOM stands where PEP 770 has it, and the licence of each component where PEP 639 has it."""
    with zipfile.ZipFile(wheel) as archive:
        info = f"tightbeam-{tightbeam.__version__}.dist-info"
        sbom = json.loads(archive.read(f"{info}/sboms/tightbeam.cdx.json"))
        licences = [name for name in archive.namelist() if name.startswith(f"{info}/licenses/licenses/")]
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["version"]) == ("CycloneDX", tightbeam.__version__)
    assert all(re.fullmatch(r"1\.\d+", component["version"]) for component in sbom["components"])
    assert [Path(name).stem for name in licences if name.endswith(".txt")] == [
        component["name"] for component in sbom["components"]
    ]


def test_bundle_runs_with_the_native_library(
    machine: BareMachine, bundle: Path, lines: list[str], expected: list[list[int]], tmp_path: Path
) -> None:
    report = machine.run("python", "-c", REPORT, bundle)
    assert report.returncode == 0, report.stderr
    found = json.loads(report.stdout)
    assert found["version"] == found["metadata"] == tightbeam.__version__
    assert all(path.startswith(str(machine.folder)) for path in found["libraries"]) and found["mapped"]
    own = cpu_library()
    assert own is not None and Path(found["libraries"][0]).read_bytes() == own.read_bytes()  # as fast as a clone's

    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{line}\n" for line in lines))
    done = machine.run("run-model", bundle, texts, "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["tokens"] for line in done.stdout.splitlines()] == expected


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap")
def test_root_of_the_image_runs_a_bundle(wheel: Path, bundle: Path, lines: list[str], tmp_path: Path) -> None:
    """The image's root, without what a container adds to it, by its user and its entry point."""
    image, root = IMAGES["runner"], tmp_path / "root"
    make_root(image, wheel, root)
    shutil.copytree(bundle, root / "models" / "demo")
    (root / "models" / "texts.txt").write_text("".join(f"{line}\n" for line in lines))
    command = ["chroot", f"--userspec={USER}:{USER}", root, *image.command, "run", "/models/demo", "/models/texts.txt"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin", "HOME": "/tmp"})
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == LINES
    assert sum(path.lstat().st_size for path in root.rglob("*") if not path.is_symlink()) < 400e6


@pytest.mark.parametrize("command", COMMANDS)
def test_command_needs_neither_torch_nor_a_compiler_to_say_what_it_is(machine: BareMachine, command: str) -> None:
    assert machine.run(command, "--version").stdout == f"{command} {tightbeam.__version__} (tightbeam)\n"


def test_command_names_the_extra_that_it_needs(machine: BareMachine) -> None:
    done = machine.run("export-model", "demo")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "pip install 'tightbeam[export" in line
