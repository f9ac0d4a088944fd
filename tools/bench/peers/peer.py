"""An engine in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import IO, Any

from tightbeam.deploy.runtimes.process.environment import with_huge_pages
from tools.bench.peers.environments import PeerError

__all__ = ["Peer", "convert"]

WORKER = Path(__file__).with_name("worker.py")
SETTLE_SECONDS = 0.5
"""Pause before a turn: the threads of the engine before go on spinning for 0.2 s (OpenMP of CTranslate2)."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Peer:
    """An engine that runs jobs.

    Parameters
    ----------
    name
        The engine's name in messages.
    python
        The interpreter of its environment.
    engine, folder, precision, task, threads
        What `worker` loads.
    log
        File of what the process writes to standard error.
    """

    def __init__(
        self, name: str, python: Path, engine: str, folder: Path, precision: str, task: str, threads: int, log: Path
    ) -> None:
        self.name = name
        self._log = log
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                [str(python), "-I", str(WORKER), "run", engine, str(folder), precision, task, str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=with_huge_pages({**os.environ, **OFFLINE, "OMP_NUM_THREADS": str(threads)}),
            )
        self.loaded = self._result()

    @property
    def pid(self) -> int:
        """The id of the process, whose memory can be read while it is alive."""
        return self._process.pid

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job (`Job.message`); returns what `worker` sends."""
        time.sleep(SETTLE_SECONDS)
        print(json.dumps(job, default=list), file=_piped(self._process.stdin), flush=True)
        return self._result()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _result(self) -> dict[str, Any]:
        line = _piped(self._process.stdout).readline()
        if not line:
            reason = _last_line(self._log.read_text(errors="replace"))
            self.close()
            raise PeerError(f"{self.name} ended with code {self._process.returncode} ({reason}); see {self._log}")
        result: dict[str, Any] = json.loads(line)
        return result


def convert(python: Path, engine: str, checkpoint: Path, folder: Path, precision: str, task: str) -> None:
    """Make an engine's own model of a checkpoint, whole or not at all."""
    part = folder.with_name(f"{folder.name}-{os.getpid()}.part")
    command = [str(python), "-I", str(WORKER), "convert", engine, str(checkpoint), str(part), precision, task]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **OFFLINE})
    if done.returncode:
        raise PeerError(f"{engine} cannot convert {checkpoint} to {precision}: {_last_line(done.stderr)}")
    part.rename(folder)


def _piped(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "it said nothing")
