"""Build container images with buildah: a runner, an HTTP server, or Triton Inference Server.

    python -m tools.wheel dist
    python -m tools.images runner dist/*.whl      # the image localhost/tightbeam-runner

An image has Debian's Python and the wheel. It runs as a user that is not root, and writes to /tmp alone, so that its
root can be read-only: docs/how-to/containers.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tightbeam import SILENCED
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.runtimes.process.environment import SERVER_MALLOC
from tools.debian import SUITE, VERSION, wheel_options

PACKAGES = (f"python{VERSION}-minimal", f"libpython{VERSION}-stdlib", "libstdc++6", "ca-certificates")
USER = 65532
VENV = "/opt/tightbeam"
SITE = f"{VENV}/lib/python{VERSION}/site-packages"
TRITON = f"{SITE}/pytriton/tritonserver"
STUB = "triton_python_backend_stub"
START = f"""
import os, shutil, sys
shutil.copytree("{TRITON}/backends", "/tmp/backends", dirs_exist_ok=True)
server = "{TRITON}/bin/tritonserver"
os.execv(server, [server, "--backend-directory=/tmp/backends", "--model-repository=/models", *sys.argv[1:]])
"""
"""Starts Triton, of which this version sets the mode of its Python backend's program, and so has to own it."""


@dataclass(frozen=True)
class Image:
    """What an image has and starts.

    Attributes
    ----------
    command : tuple of str
        The entry point.
    extras : str
        Extras of the wheel.
    packages : tuple of str
        Debian packages beside `PACKAGES`.
    health : str
        Address that answers with success while the server is ready; empty for a command that ends by itself.
    """

    command: tuple[str, ...]
    extras: str = ""
    packages: tuple[str, ...] = ()
    health: str = ""


PYTHON = f"{VENV}/bin/python3"
IMAGES = {
    "runner": Image((PYTHON, "-m", "tightbeam")),
    "http": Image((PYTHON, "-m", "tightbeam", "serve", "--host", "0.0.0.0"), "[http]", (), "8080/health/ready"),
    "triton": Image((PYTHON, "-c", START), "[server]", ("bash", f"libpython{VERSION}"), "8000/v2/health/ready"),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def build(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="runner, http or triton.")],
    wheel: Annotated[Path, typer.Argument(exists=True, help="The wheel for Linux on this machine's processor.")],
) -> None:
    """Build the image localhost/tightbeam-KIND from WHEEL, and print its size in MB."""
    if kind not in IMAGES:
        say(f"error: there is no image {kind}; expected {', '.join(IMAGES)}")
        raise typer.Exit(1)
    lacking = [program for program in ("mmdebstrap", "buildah") if shutil.which(program) is None]
    if lacking:
        say(f"error: {' and '.join(lacking)} missing; install them: apt install {' '.join(lacking)}")
        raise typer.Exit(1)
    image, name = IMAGES[kind], f"localhost/tightbeam-{kind}"
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        make_root(image, wheel, root)
        megabytes = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_symlink()) / 1e6
        container = _run("buildah", "from", "scratch").strip()
        _run("buildah", "copy", "--quiet", container, root, "/")
        _run("buildah", "config", *configuration(kind, image), container)
        _run("buildah", "commit", "--quiet", "--rm", "--format=docker", container, name)
    print(f"{name}: {megabytes:.0f} MB")


def make_root(image: Image, wheel: Path, root: Path) -> None:
    """Make the root file system of an image in the folder ``root``."""
    included = ",".join((*PACKAGES, *image.packages))
    _run("mmdebstrap", "--quiet", "--variant=extract", f"--include={included}", SUITE, root)
    for unused in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt", "var/cache", "dev"):
        shutil.rmtree(root / unused, ignore_errors=True)
    (root / "etc" / "passwd").write_text(f"tightbeam:x:{USER}:{USER}::/tmp:/\n")
    for folder in (f"{VENV[1:]}/bin", "tmp", "dev", "models"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / VENV[1:] / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for link in ("python", "python3"):
        (root / VENV[1:] / "bin" / link).symlink_to(f"/usr/bin/python{VERSION}")
    chosen = wheel_options(os.uname().machine)
    site = root / SITE[1:]
    _run(sys.executable, "-m", "pip", "install", "--quiet", f"--target={site}", *chosen, f"{wheel}{image.extras}")
    if (backends := root / TRITON[1:] / "backends" / "python").is_dir():
        shutil.copy2(root / TRITON[1:] / "python_backend_stubs" / VERSION / STUB, backends)


def configuration(kind: str, image: Image) -> list[str]:
    """List the options of ``buildah config`` for an image."""
    variables = {"PATH": f"{VENV}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp", "LANG": "C.UTF-8"}
    variables |= SILENCED
    if kind == "triton":
        variables |= {"LD_LIBRARY_PATH": f"{SITE}/nvidia_pytriton.libs", **SERVER_MALLOC}
    options = [f"--user={USER}:{USER}", "--workingdir=/tmp", f"--entrypoint={json.dumps(image.command)}"]
    options += [f"--env={name}={value}" for name, value in variables.items()]
    if image.health:
        port = image.health.partition("/")[0]
        code = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{image.health}')"
        options += [f"--port={port}", "--healthcheck-start-period=60s", f'--healthcheck=CMD {PYTHON} -c "{code}"']
    return options


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
        say(f"error: {Path(command[0]).name} failed with code {done.returncode}; its output is above")
        raise typer.Exit(1)
    return done.stdout


if __name__ == "__main__":
    command_line(app, "tools.images")
