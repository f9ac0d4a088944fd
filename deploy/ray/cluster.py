"""The Ray cluster: the one at RAY_ADDRESS, or one on this machine, which ends with the run."""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import RuntimeSetupError, first_line
from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.ray.sizing import Machine
from tightbeam.deploy.runtimes.process.cores import allowed_cores

__all__ = ["connected", "machines"]

ADDRESS = "RAY_ADDRESS"
AUTO = "auto"
"""Stands for the cluster that `ray start` started last on this machine; a file has its address."""
CONNECT_SECONDS = 10
"""Longest wait for a cluster to respond."""
ENVIRONMENT = {
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings of Ray: attempts to reach a cluster, a minute each, 20 by default; and log levels, because errors are
reported here and Ray's messages stay in its own log files."""
OBJECT_STORE_BYTES = 256 << 20
"""Shared memory of a cluster that is started here. The actors read the rows, so little passes through it."""


@contextmanager
def connected() -> Iterator[Any]:
    """Connect to the cluster, or start one; at the end disconnect from it, or stop it. Yields the library ray.

    Raises
    ------
    RuntimeSetupError
        Ray is missing, the cluster cannot be reached, or it runs other versions.
    """
    address = os.environ.get(ADDRESS)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address:
        _check_reachable(address)
    ray = optional_library("ray")
    optional_library("ray.data")
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):  # Ray prints its messages to standard output
        warnings.simplefilter("ignore")
        try:
            handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            _connect(ray, address)
            for number, handler in handlers.items():  # Ray's own handlers print addresses of native code
                signal.signal(number, handler)
            yield ray
        finally:
            ray.shutdown()


def machines(ray: Any) -> list[Machine]:
    """Return the living machines of the cluster."""
    found = []
    for node in ray.nodes():
        resources = node["Resources"] if node["Alive"] else {}
        cores, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        if cores or gpus:
            found.append(Machine(cores, int(resources.get("memory", 0)), gpus))
    return found


def _check_reachable(address: str) -> None:
    """Raise RuntimeSetupError if HOST:PORT does not respond. Ray itself would try for a minute."""
    target = _last_started() or address if address == AUTO else address
    host, _, port = target.rpartition("//")[2].partition("/")[0].rpartition(":")
    try:
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unusable(address if target == address else f"{address}, {target}", error) from None


def _last_started() -> str:
    """Return the address that `ray start` wrote last; empty if there is none, which Ray then reports."""
    try:
        return Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster").read_text().strip()
    except (OSError, ValueError):
        return ""


@contextmanager
def _silent() -> Iterator[None]:
    """Discard standard error inside this context: Ray's native part reports there that its log level was set."""
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if not address:
        own = {"num_cpus": allowed_cores(), "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        try:
            with _silent():
                ray.init("local", **own, **quiet)
        except Exception as error:
            raise RuntimeSetupError(f"Ray cannot start on this machine ({first_line(error)}); see /tmp/ray") from None
        return
    try:
        with _silent():
            ray.init(address, **quiet)
    except Exception as error:  # of many classes: no connection, another version of Ray or Python
        raise _unusable(address, error) from None


def _unusable(address: str, error: Exception) -> RuntimeSetupError:
    return RuntimeSetupError(
        f"the Ray cluster at {ADDRESS}={address} cannot be used ({first_line(error)}); start it with ray start, "
        f"or unset {ADDRESS} to start one here"
    )
