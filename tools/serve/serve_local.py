"""Start a real Triton Inference Server on this machine, on loopback: for trying a model repository, and for the tests.

python tools/serve/serve_local.py build/models

The server is the one that the wheel nvidia-pytriton bundles; `make` installs it into .venv/triton.
"""

from __future__ import annotations

import json
import os
import shlex
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
from pathlib import Path
from typing import Annotated, Any

import typer

from tightbeam.deploy.console import command_line, say

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "TIGHTBEAM_TRITONSERVER"
ENVIRONMENT = Path(os.environ.get(VARIABLE, ROOT / ".venv" / "triton"))
"""The virtual environment that the server, and what it starts, runs in."""
START_SECONDS = 120.0
STOP_SECONDS = 30.0
SHARED_MEMORY = Path("/dev/shm")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class ServerError(RuntimeError):
    """The server is not installed, or did not start."""


class LocalServer:
    """A Triton server on loopback, ready on return; leaving the context ends it.

    ``ports``: of HTTP, gRPC and metrics; free ones by default. ``log``: file for the output of the server.
    """

    def __init__(self, repository: Path, *, ports: tuple[int, int, int] | None = None, log: Path | None = None) -> None:
        reason = installation_error()
        if reason:
            raise ServerError(reason)
        for port in ports or ():
            if not _is_free(port):
                raise ServerError(f"port {port} is in use; pass others, such as --http-port 8010")
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in ports or _free_ports())
        self._log = log
        with tempfile.TemporaryFile() if log is None else log.open("ab") as stream:
            self.process = subprocess.Popen(
                [_package() / "bin" / "tritonserver", *self._options(repository)],
                env=self._environment(),
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

    def _options(self, repository: Path) -> list[str]:
        endpoints = (("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics))
        addresses = [
            option
            for name, address in endpoints
            for option in (f"--{name}-address=127.0.0.1", f"--{name}-port={address.rpartition(':')[2]}")
        ]
        return [
            f"--model-repository={repository}",
            f"--backend-directory={_package() / 'backends'}",
            "--model-control-mode=explicit",
            *(f"--load-model={config.parent.name}" for config in _configs(repository)),
            "--exit-timeout-secs=10",
            "--log-info=false",
            *addresses,
        ]

    def _environment(self) -> dict[str, str]:
        libraries = [sysconfig.get_config_var("LIBDIR"), _package().parents[2] / "nvidia_pytriton.libs"]
        return {
            **os.environ,
            "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ.get('PATH', '')}",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "TIGHTBEAM_TRITON_URL": f"http://{self.http}",
        }

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.status("/v2/health/ready") != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                said = "" if self._log is None else ":\n" + self._log.read_text(errors="replace")[-4000:]
                raise ServerError(f"the server did not start{said}")
            time.sleep(0.05)

    def status(self, path: str) -> int:
        """HTTP status of a page; 0 without an response."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post(self, path: str, body: Any) -> tuple[int, str]:
        """HTTP status and text of the response to a JSON body."""
        request = urllib.request.Request(f"http://{self.http}{path}", data=json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return int(response.status), response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def counters(self, model: str) -> dict[str, float]:
        """The metrics of one model, by name; those of its versions together."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as response:
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


def installation_error() -> str:
    """Reason why the server cannot be started; empty where it can."""
    package = _package()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    install = f"make serve-demo installs it, or set {VARIABLE} to an environment with tools/serve/tritonserver.txt"
    if not (package / "bin" / "tritonserver").is_file():
        return f"no tritonserver in {ENVIRONMENT}, since the wheel nvidia-pytriton is not installed there; {install}"
    target = package / "backends" / "python" / "triton_python_backend_stub"
    stub = package / "python_backend_stubs" / version / target.name
    if not stub.is_file():
        return f"the wheel nvidia-pytriton has no build for Python {version}"
    if not target.is_file():
        part = target.with_name(f"{target.name}.{os.getpid()}")  # others may be doing the same
        shutil.copy2(stub, part)
        part.rename(target)
    return ""


def _package() -> Path:
    found = sorted(ENVIRONMENT.glob("lib/python3.*/site-packages/pytriton/tritonserver"))
    return found[0] if found else ENVIRONMENT / "pytriton" / "tritonserver"


def _configs(repository: Path) -> list[Path]:
    """Configurations of the models in a repository, for a server that would not start on a foreign folder."""
    return sorted(repository.glob("*/config.pbtxt"))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _free_ports() -> tuple[int, ...]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = tuple(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports


@app.command()
def serve(
    repository: Annotated[Path, typer.Argument(help="Model repository made by triton-repo.")],
    text: Annotated[str, typer.Option(help="Text of the request that is printed.")] = "Your text.",
    http_port: Annotated[int, typer.Option(help="Port for HTTP.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Port for gRPC.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Port for Prometheus metrics.")] = 8002,
) -> None:
    """Serve REPOSITORY until Ctrl-C, and print a request for each of its models that reads text."""
    if not _configs(repository):
        say(f"error: {repository} holds no model; expected a model repository made by triton-repo")
        raise typer.Exit(1)
    try:
        with LocalServer(repository, ports=(http_port, grpc_port, metrics_port)) as server:
            print("\nReady. (Errors above about CUDA, NVML and DCGM are those of a machine without a GPU.)")
            print(f"http://{server.http}, gRPC {server.grpc}, http://{server.metrics}/metrics; Ctrl-C ends it.")
            print("A request:\n")
            body = shlex.quote(json.dumps({"TEXT": text}))
            for config in _configs(repository):
                action = "generate_stream" if "decoupled: true" in config.read_text() else "generate"
                print(f"curl http://{server.http}/v2/models/{config.parent.name}/{action} -d {body}", flush=True)
            code = server.process.wait()
            say(f"error: the server ended by itself, with code {code}; its last lines are above")
            raise typer.Exit(1)
    except ServerError as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("stopped")


if __name__ == "__main__":
    command_line(app, "serve_local.py")
