"""A Triton Inference Server on loopback, for trying a model repository and for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tightbeam.deploy.serving.protocol.parameters import URL_VARIABLE
from tightbeam.deploy.serving.repository.shell_commands import unreadable_path
from tightbeam.deploy.serving.server.triton_server import ServerError, TritonServer, find_server

__all__ = ["NVIDIA_DRIVER", "LocalServer", "free_ports"]

START_SECONDS = 120.0
STOP_SECONDS = 30.0
"""Time for the server to exit before it is killed, with every process that it started."""
CLEAN_UP_SECONDS = 5.0
"""Time for the workers of a server that has ended to remove its shared memory, if the server did not."""
KILL_SECONDS = 10.0
"""Time for a killed server to end."""
POLL_SECONDS = 0.05
NVIDIA_DRIVER = Path("/dev/nvidiactl")
"""A file that a machine with a usable GPU has."""
WITHOUT_GPU = ("--pinned-memory-pool-byte-size=0", "--allow-gpu-metrics=false")
"""Options of a machine without a GPU, on which the server would warn of what it lacks."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Not through a proxy of the environment."""


class LocalServer:
    """A Triton server on loopback, ready on return; leaving the context ends it.

    Parameters
    ----------
    repository
        The model repository; all its models are loaded.
    ports
        Ports of HTTP, gRPC and metrics; free ones by default.
    log
        File for the output of the server; by default the output of this process.
    environment
        Virtual environment of the server, see `find_server`.
    check
        Function that is called several times a second while this process waits for the server to start or to end. An
        exception of it ends the server, and is raised.

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
        check: Callable[[], None] = lambda: None,
    ) -> None:
        server = find_server(environment)
        if fault := unreadable_path(repository):
            raise ServerError(fault)
        for port in ports or ():
            if not _is_free(port):
                raise ServerError(f"port {port} is in use; pass others, such as --http-port 8010")
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in ports or free_ports())
        self._log, self._check = log, check
        with ExitStack() as files:
            stream = None if log is None else files.enter_context(log.open("ab"))
            self.process = subprocess.Popen(
                [server.program, *self._options(server, repository)],
                env={**os.environ, **server.environment(), URL_VARIABLE: f"http://{self.http}"},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
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
            self._check()
            if self.process.poll() is not None or time.monotonic() > end:
                said = "; the reason is above" if self._log is None else f":\n{self._log_end()}"
                raise ServerError(f"the server did not start{said}")
            time.sleep(POLL_SECONDS)

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
        """Return the metrics of one model, by name, summed over its versions."""
        with DIRECT.open(f"http://{self.metrics}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if f'model="{model}"' in line and not line.startswith("#"):
                name = line.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
        return found

    def _has_group(self) -> bool:
        """True while a process that the server started runs. The server itself has to have been waited for.

        Process 1 of a container inherits processes whose parent has ended, and each stays until its status is read.
        """
        with suppress(ChildProcessError):
            while os.waitpid(-self.process.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self) -> int:
        """Wait until the server ends by itself; returns its exit status, negative for a signal."""
        while (code := self.process.poll()) is None:
            self._check()
            time.sleep(POLL_SECONDS)
        return code

    def stop(self) -> None:
        """End the server and all processes that it started.

        It gets SIGTERM and `STOP_SECONDS`, and the processes that it started `CLEAN_UP_SECONDS` more. Then its process
        group gets SIGKILL; if this wait is interrupted, at once.

        Raises
        ------
        ServerError
            The server does not end when it is killed.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
                end = time.monotonic() + CLEAN_UP_SECONDS
                while self._has_group() and time.monotonic() < end:
                    time.sleep(POLL_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            try:
                self.process.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                raise ServerError(
                    f"tritonserver, process {self.process.pid}, does not end though it was killed; it waits for a "
                    "device or a file system; look at its state in ps"
                ) from None


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_ports() -> tuple[int, int, int]:
    """Return three free ports of loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    http, grpc, metrics = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return http, grpc, metrics
