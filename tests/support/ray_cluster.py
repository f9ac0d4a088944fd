"""A Ray cluster of several node processes on this machine, and `run-model --ray` on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commands import MODULE

MARK = "TIGHTBEAM_TEST_CLUSTER"
"""Environment variable that the processes of a cluster inherit."""
NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
others = [cluster.add_node(num_cpus=1) for _ in range(int(sys.argv[1]) - 1)]
print("address", cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(others.pop(), allow_graceful=False)
    print("removed", flush=True)
cluster.shutdown()
"""


class RayCluster:
    """A running cluster: a head and other nodes, of one core each."""

    def __init__(self, process: subprocess.Popen[str], mark: str) -> None:
        self._process, self._mark = process, mark
        self.address = self._answer("address")

    def remove_node(self) -> None:
        """End a node other than the head as a power cut would."""
        assert self._process.stdin is not None
        self._process.stdin.write("remove\n")
        self._process.stdin.flush()
        self._answer("removed")

    def workers(self) -> list[int]:
        """Process ids of the actors that run partitions."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_worker(pid)]

    def kill_worker(self) -> int:
        """Kill one of these, and return its process id."""
        wait_for(lambda: bool(self.workers()))
        pid = self.workers()[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def environment(self) -> dict[str, str]:
        """Environment of a command that uses the cluster."""
        return {**os.environ, "RAY_ADDRESS": self.address, "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start `run-model --ray`."""
        command = [*MODULE, *map(str, arguments), "--ray"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # Ray prints too
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError("the cluster has ended")

    def _is_worker(self, pid: int) -> bool:
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            return (
                title.startswith(b"ray::MapWorker") and self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
            )
        except OSError:
            return False


@contextmanager
def ray_cluster(nodes: int) -> Iterator[RayCluster]:
    """A cluster, which ends with the block."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", NODES, str(nodes)],
        env=environment,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield RayCluster(process, mark)
    finally:
        process.communicate(timeout=60)


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
