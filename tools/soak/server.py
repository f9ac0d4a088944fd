"""The server of the soak: it is started, killed, measured, and its disk filled."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tightbeam.deploy.serving.server import local_server
from tightbeam.deploy.serving.server.local_server import LocalServer, free_ports

__all__ = ["Disk", "SoakedServer"]

ENDS_S = 30.0
"""Time in which the processes of a killed server must have ended by themselves."""
START_S = 600.0
"""Time for a server to start on a machine that others load."""
SHARED_MEMORY = Path("/dev/shm")
REGION = "triton_python_backend_shm_region"
MARKS = {"stub": "triton_python_backend_stub", "worker": "tightbeam.deploy.serving.worker"}


class Disk:
    """A small file system of its own for the server's log and temporary files; it needs root."""

    SIZE = "48m"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.SIZE}", "tmpfs", str(folder)]
        self.small = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
        os.environ["TMPDIR"] = str(folder)

    def fill(self) -> None:
        """Write until nothing fits any more."""
        if not self.small:
            return
        with (self.folder / "fill").open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Remove what `fill` wrote."""
        (self.folder / "fill").unlink(missing_ok=True)


class SoakedServer:
    """A server of a repository on the same ports whenever it is started.

    Attributes
    ----------
    changes : int
        How often it was killed or started.
    left_behind : list of str
        Processes and files of shared memory that a killed server left behind.
    killed : Counter
        Kills by what was killed.
    """

    def __init__(self, repository: Path, log: Path) -> None:
        self._repository, self._log = repository, log
        self._ports = free_ports()
        self.address = f"127.0.0.1:{self._ports[0]}"
        self.changes = 0
        self.left_behind: list[str] = []
        self.killed: Counter[str] = Counter()
        self.restarts = 0.0
        self.start()

    def start(self) -> None:
        """Start the server; returns when it is ready."""
        local_server.START_SECONDS = START_S
        self._server = LocalServer(self._repository, ports=self._ports, log=self._log)
        self.changes += 1

    def stop(self) -> int:
        """Stop the server; return its exit status."""
        self._count_restarts()
        self._server.stop()
        return int(self._server.process.returncode)

    def kill(self) -> None:
        """Kill the server alone, and wait until its other processes have ended by themselves."""
        self.changes += 1
        self._count_restarts()
        self.killed["server"] += 1
        regions = [SHARED_MEMORY / name for name in self._regions()]
        os.kill(self._server.process.pid, signal.SIGKILL)
        self._server.process.wait()
        end = time.monotonic() + ENDS_S
        while (left := self.named()) and time.monotonic() < end:
            time.sleep(0.1)
        for pid, name in left:
            self.left_behind.append(name)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for region in filter(Path.exists, regions):
            self.left_behind.append(region.name)
            region.unlink()

    def _regions(self) -> list[str]:
        """Return the names of the memory that the stubs share with the server."""
        stubs = [pid for pid, name in self.named() if name.startswith("stub")]
        arguments = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in stubs]
        return [argument for given in arguments for argument in given if argument.startswith(REGION)]

    def kill_worker(self, rng: random.Random, model: str = "") -> None:
        """Kill one of the workers, or the one of a model."""
        workers = [pid for pid, name in self.named() if name.startswith("worker") and name.endswith(model)]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
                self.killed["worker"] += 1

    def named(self) -> list[tuple[int, str]]:
        """Return the server's processes that run, by number, with what each is."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
                if os.getpgid(int(folder.name)) == self._server.process.pid and command:  # none once it has ended
                    kind = next((kind for kind, mark in MARKS.items() if mark in command), "server")
                    model = next((part for part in command.split("/models/")[1:]), "").split("/")[0]
                    found.append((int(folder.name), f"{kind} {model}".strip()))
        return found

    def memory(self) -> dict[str, int]:
        """Return the bytes of each process, shared pages divided by those who share them."""
        found = {}
        for pid, name in self.named():
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                found[f"{name} ({pid})"] = next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        return found

    def processor_seconds(self) -> float:
        """Return the processor time that all processes have used so far."""
        ticks = 0
        for pid, _ in self.named():
            with suppress(OSError):
                # A name in brackets may have blanks; behind it, user and system time are the 12th and 13th field.
                ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        """Return the open files of all processes together."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid, _ in self.named())

    def _count_restarts(self) -> None:
        with suppress(OSError):
            for config in self._repository.glob("*/config.pbtxt"):
                counters = self._server.counters(config.parent.name)
                self.restarts += counters.get("tightbeam_restarts_total", 0)

    def ready(self, seconds: float = 60.0) -> bool:
        """True if the server and its models become ready within some time."""
        end = time.monotonic() + seconds
        models = [config.parent.name for config in self._repository.glob("*/config.pbtxt")]
        while not all(self._server.status(f"/v2/models/{model}/ready") == 200 for model in models):
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True
