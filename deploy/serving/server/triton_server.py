"""The Triton Inference Server of this machine: from the wheel nvidia-pytriton, or ``tritonserver`` on PATH.

Only the server of the wheel (the extra ``server``) is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tightbeam.deploy.runtimes.process.environment import SERVER_MALLOC

__all__ = ["VARIABLE", "VERSION", "ServerError", "TritonServer", "find_server"]

VARIABLE = "TIGHTBEAM_TRITONSERVER"
"""Environment variable that names a virtual environment with the wheel."""
INSTALL = "pip install 'tightbeam[server]'"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Version of Python that the server's Python backend has to be for."""
MISSING_LIBRARY = 127
"""Exit status of the dynamic linker."""


class ServerError(RuntimeError):
    """The server is not installed, or did not start; the message begins with a line that says why."""


@dataclass(frozen=True)
class TritonServer:
    """A Triton server that is installed.

    Attributes
    ----------
    program : Path
        The program ``tritonserver``.
    scripts : Path
        The folder of the Python that its Python backend is to run, which goes before PATH.
    backends : Path or None
        The folder of its backends; None for the server's default.
    libraries : tuple of Path
        Folders of shared libraries that it needs.
    """

    program: Path
    scripts: Path
    backends: Path | None = None
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return environment variables that the server needs, in addition to this process's own."""
        malloc = {name: value for name, value in SERVER_MALLOC.items() if name not in os.environ}
        found = malloc | {"PATH": _joined(self.scripts, os.environ.get("PATH"))}
        if self.libraries:
            found["LD_LIBRARY_PATH"] = _joined(*self.libraries, os.environ.get("LD_LIBRARY_PATH"))
        return found


def find_server(environment: Path | None = None) -> TritonServer:
    """Find a Triton server on this machine.

    Parameters
    ----------
    environment
        A virtual environment with the wheel nvidia-pytriton and Tightbeam. By default the one that the variable
        `VARIABLE` names; else this Python's, or its subfolder ``triton``, which ``make`` sets up; else
        ``tritonserver`` on PATH.

    Raises
    ------
    ServerError
        There is no server, or it cannot be run.
    """
    if named := environment or os.environ.get(VARIABLE):
        if found := _wheel_in(Path(named)):
            return found
        raise ServerError(
            f"{named} is not an environment of Python {VERSION} with the wheel nvidia-pytriton, which brings "
            f"tritonserver; in that environment: {INSTALL}"
        )
    for folder in (Path(sys.prefix), Path(sys.prefix, "triton")):
        if found := _wheel_in(folder):
            return found
    if program := shutil.which("tritonserver"):
        return TritonServer(Path(program), Path(sys.executable).parent)
    raise ServerError(
        f"there is no tritonserver, neither in {sys.prefix} nor on PATH; {INSTALL} brings one for Linux on x86-64 with "
        "Python 3.11 or 3.12"
    )


def _wheel_in(environment: Path) -> TritonServer | None:
    """Return the server of the wheel in a virtual environment; None without it. Raises ServerError if it cannot run."""
    packages = environment / "lib" / f"python{VERSION}" / "site-packages"
    package = packages / "pytriton" / "tritonserver"
    program, backends = package / "bin" / "tritonserver", package / "backends"
    if not program.is_file():
        return None
    libraries = (
        Path(sysconfig.get_config_var("LIBDIR")),
        Path(sys.base_prefix, "lib"),
        packages / "nvidia_pytriton.libs",
    )
    server = TritonServer(program, environment / "bin", backends, libraries)
    target = backends / "python" / "triton_python_backend_stub"
    stub = package / "python_backend_stubs" / VERSION / target.name
    if not stub.is_file():
        raise ServerError(f"the wheel nvidia-pytriton in {environment} has no backend for Python {VERSION}; take 3.11")
    tried = subprocess.run(
        [stub], env={**os.environ, **server.environment()}, capture_output=True, text=True, check=False
    )
    if tried.returncode == MISSING_LIBRARY:
        raise ServerError(
            f"Triton's Python backend does not run ({tried.stderr.strip()}); install that library, for instance "
            f"apt install libpython{VERSION}, or take a Python that was built with --enable-shared"
        )
    if not target.is_file():
        part = target.with_name(f"{target.name}.{os.getpid()}")  # others may be doing the same
        try:
            shutil.copy2(stub, part)
            part.rename(target)
        except OSError as error:
            raise ServerError(
                f"cannot copy the backend for Python {VERSION} to {target} ({error.strerror}); run serve-local once as "
                "the owner of that folder"
            ) from None
    return server


def _joined(*paths: Path | str | None) -> str:
    """Folders as a variable such as PATH."""
    return os.pathsep.join(str(path) for path in paths if path)
