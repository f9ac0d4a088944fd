"""A Triton Inference Server on loopback, for trying a model repository and for tests.

The server is that of the wheel nvidia-pytriton (the extra ``server``), of which only the server itself is used, or
``tritonserver`` on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.deploy.serving.backend import URL_VARIABLE

__all__ = ["NVIDIA_DRIVER", "VARIABLE", "LocalServer", "ServerError", "TritonServer", "find_server", "free_ports"]

VARIABLE = "TIGHTBEAM_TRITONSERVER"
"""Environment variable that names a virtual environment with the wheel."""
INSTALL = "pip install 'tightbeam[server]'"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
SHELL = re.compile(r"""[\s"'`$&|;<>()*?#~!\\]""")
"""Characters that Triton's Python backend passes to a shell as they are."""
MISSING_LIBRARY = 127
"""Exit status of the dynamic linker."""
NVIDIA_DRIVER = Path("/dev/nvidiactl")
"""A file that a machine with a usable GPU has."""
WITHOUT_GPU = ("--pinned-memory-pool-byte-size=0", "--allow-gpu-metrics=false")
"""Options of a machine without a GPU, on which the server would warn of what it lacks."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Not through a proxy of the environment."""


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
        """Environment variables that the server needs, beside those of this process."""
        found = {"PATH": _joined(self.scripts, os.environ.get("PATH"))}
        if self.libraries:
            found["LD_LIBRARY_PATH"] = _joined(*self.libraries, os.environ.get("LD_LIBRARY_PATH"))
        return found


def find_server(environment: Path | None = None) -> TritonServer:
    """Find a Triton server on this machine.

    Parameters
    ----------
    environment
        A virtual environment with the wheel nvidia-pytriton and Tightbeam. By default the one that the variable
        `VARIABLE` names; else that of this Python, or its subfolder ``triton``, which ``make`` sets up; else
        ``tritonserver`` on PATH.

    Raises
    ------
    ServerError
        There is none, or it cannot be run.
    """
    if named := environment or os.environ.get(VARIABLE):
        if found := _wheel_in(Path(named)):
            return found
        raise ServerError(
            f"{named} is no environment of Python {VERSION} with the wheel nvidia-pytriton, which brings tritonserver; "
            f"in that environment: {INSTALL}"
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
    """The server of the wheel in a virtual environment. Raises ServerError where it cannot be run."""
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


class LocalServer:
    """A Triton server on loopback, ready on return; leaving the context ends it.

    Parameters
    ----------
    repository
        The model repository; all its models are loaded.
    ports
        Ports of HTTP, gRPC and metrics; free ones by default.
    log
        File for the output of the server; by default that of this process.
    environment
        Virtual environment of the server, see `find_server`.

    Raises
    ------
    ServerError
        There is no server, a port is in use, or a model cannot be loaded.
    """

    def __init__(
        self,
        repository: Path,
        *,
        ports: tuple[int, int, int] | None = None,
        log: Path | None = None,
        environment: Path | None = None,
    ) -> None:
        server = find_server(environment)
        if fault := SHELL.search(str(repository)):
            raise ServerError(
                f"Triton's Python backend cannot read a path with {fault[0]!r}, as {repository} has; move the "
                "repository, or make a link to it"
            )
        for port in ports or ():
            if not _is_free(port):
                raise ServerError(f"port {port} is in use; pass others, such as --http-port 8010")
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in ports or free_ports())
        self._log = log
        with tempfile.TemporaryFile() if log is None else log.open("ab") as stream:
            self.process = subprocess.Popen(
                [server.program, *self._options(server, repository)],
                env={**os.environ, **server.environment(), URL_VARIABLE: f"http://{self.http}"},
                stdin=subprocess.DEVNULL,
                stdout=None if log is None else stream,
                stderr=None if log is None else stream,
                start_new_session=True,  # Ctrl-C reaches this process, which then stops the server
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _options(self, server: TritonServer, repository: Path) -> list[str]:
        endpoints = (("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics))
        addresses = [
            option
            for name, address in endpoints
            for option in (f"--{name}-address=127.0.0.1", f"--{name}-port={address.rpartition(':')[2]}")
        ]
        models = sorted(config.parent.name for config in repository.glob("*/config.pbtxt"))
        return [
            f"--model-repository={repository}",
            *([f"--backend-directory={server.backends}"] if server.backends else []),
            "--model-control-mode=explicit",  # a server that loads the whole folder does not start on a foreign one
            *(f"--load-model={model}" for model in models),
            "--exit-timeout-secs=10",
            "--log-info=false",
            *([] if NVIDIA_DRIVER.exists() else WITHOUT_GPU),
            *addresses,
        ]

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.status("/v2/health/ready") != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                said = "; the reason is above" if self._log is None else f":\n{self._log_end()}"
                raise ServerError(f"the server did not start{said}")
            time.sleep(0.05)

    def _log_end(self) -> str:
        assert self._log is not None
        return self._log.read_text(errors="replace")[-4000:]

    def status(self, path: str) -> int:
        """Return the HTTP status of a page; 0 without a response."""
        try:
            with DIRECT.open(f"http://{self.http}{path}", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post(self, path: str, body: Any) -> tuple[int, str]:
        """Return the HTTP status and the text of the response to a JSON body."""
        request = urllib.request.Request(
            f"http://{self.http}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with DIRECT.open(request, timeout=120) as response:
                return int(response.status), response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def counters(self, model: str) -> dict[str, float]:
        """Return the metrics of one model, by name; those of its versions together."""
        with DIRECT.open(f"http://{self.metrics}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if f'model="{model}"' in line and not line.startswith("#"):
                name = line.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
        return found

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and all processes that it started."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_ports() -> tuple[int, int, int]:
    """Three ports of loopback that are free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    http, grpc, metrics = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return http, grpc, metrics
