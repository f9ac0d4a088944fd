"""Run the package for Linux on arm64 on this machine, under QEMU.

    python -m tools.arm64                       # make build/arm64, and print the path of its Python
    QEMU_CPU=neoverse-n1 build/arm64/venv/bin/python -c "import onnxruntime"

build/arm64 has Python of Debian for arm64, whose packages are only unpacked, and an environment with the wheel for
arm64, its dependencies and what the operators' tests need. The tests are in tests/tools/test_arm64.py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tightbeam.deploy.console import say
from tools.debian import SUITE, VERSION, wheel_options

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "arm64"
PROGRAMS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64-static": "qemu-user-static",
    "mmdebstrap": "mmdebstrap",
    "cmake": "cmake",
}
"""Program -> its package in Debian."""
UNPACKED = "python3-minimal,libpython3-stdlib,libstdc++6,zlib1g"
PACKAGES = ("av", "onnx")
"""Packages that the tests need beside the wheel."""
PROCESSOR = """processor\t: {number}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
"""A processor in /proc/cpuinfo (a Neoverse N1): QEMU 7 shows that of this machine, with which ONNX Runtime crashes."""


def missing() -> str:
    """Name what this machine lacks, in one line; empty if it has all."""
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    return f"needs Debian's packages {' '.join(packages)}" if packages else ""


class Machine:
    """An environment for arm64 in ``folder``, made of what is not there yet."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self._make_root()
        self._make_environment()

    def run(
        self, *arguments: str | Path, processor: str = "max", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with ``arguments`` on a processor that ``qemu-aarch64-static -cpu help`` lists."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIGHTBEAM_"))}
        return subprocess.run(
            [self.python, *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=kept | {"QEMU_CPU": processor, "NO_COLOR": "1", "COLUMNS": "100"} | dict(environment or {}),
        )

    def _make_root(self) -> None:
        root = self.folder / "root"
        if not (root / "proc" / "cpuinfo").exists():
            shutil.rmtree(root, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            options = ["--quiet", "--variant=extract", "--architectures=arm64", f"--include={UNPACKED}"]
            _checked("mmdebstrap", *options, SUITE, root)
            (root / "proc").mkdir(exist_ok=True)
            (root / "proc" / "cpuinfo").write_text("".join(PROCESSOR.format(number=number) for number in range(2)))

    def _make_environment(self) -> None:
        venv, root = self.folder / "venv", self.folder / "root"
        packages, stamp = venv / "lib" / f"python{VERSION}" / "site-packages", venv / "made-of"
        made_of = _digest_of_sources()
        if stamp.exists() and stamp.read_text() == made_of:
            return
        shutil.rmtree(venv, ignore_errors=True)
        dist = self.folder / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        _checked(sys.executable, "-m", "tools.wheel", dist, "--arm64")
        (wheel,) = dist.glob("*.whl")
        chosen = wheel_options("aarch64")
        install = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={packages}", *chosen]
        _checked(*install, "-c", ROOT / "constraints.txt", wheel, *PACKAGES)
        (venv / "pyvenv.cfg").write_text(f"home = {root}/usr/bin\ninclude-system-site-packages = false\n")
        self.python.parent.mkdir()
        self.python.write_text(
            f'#!/bin/sh\nexec qemu-aarch64-static -L "{root}" -0 "$0" "{root}/usr/bin/python{VERSION}" "$@"\n'
        )
        self.python.chmod(0o755)
        stamp.write_text(made_of)


def _digest_of_sources() -> str:
    """Return a digest of what the wheel and the environment are made of."""
    names = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "deploy",
            "export",
            "graph_passes",
            "plugins",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    digest = hashlib.sha256(repr((SUITE, UNPACKED, PACKAGES)).encode())
    for name in [
        "constraints.txt",
        "pyproject.toml",
        "tools/arm64.py",
        "tools/debian.py",
        *sorted(filter(None, names)),
    ]:
        path = ROOT / name
        if path.is_file():
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _checked(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed with code {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    if lacking := missing():
        say(f"error: {lacking}; install them: apt install {lacking.rpartition('packages ')[2]}")
        raise SystemExit(1)
    print(Machine().python)
