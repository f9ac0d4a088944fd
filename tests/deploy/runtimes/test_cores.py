"""Cores that a process may use: affinity, and quotas of control groups of both versions."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tightbeam.deploy.runtimes._onnxruntime import session_options
from tightbeam.deploy.runtimes.process.cores import allowed_cores, quota


@pytest.mark.parametrize(
    ("files", "own", "cores"),
    [
        ({}, "", math.inf),
        ({"cpu.max": "max 100000"}, "0::/", math.inf),
        ({"cpu.max": "250000 100000"}, "0::/", 2.5),
        ({"a/b/cpu.max": "150000 100000"}, "0::/a/b", 1.5),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, "0::/a/b", 3.0),
        ({"a/cpu.max": "300000 100000"}, "0::/other", math.inf),
        *(
            ({"cpu.max": text}, "0::/", math.inf)
            for text in (
                "100000 0",
                "0 100000",
                "-1 100000",
                "100000 -1",
                "100000 x",
                "\u00b2 100000",
                "1",
                "1 2 3",
                "",
            )
        ),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "0"}, "", math.inf),
        ({"cpu.max": "150000 100000"}, "nonsense\n0::/../..", 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/x", math.inf),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/x", 0.5),
    ],
)
def test_quota_of_control_groups(tmp_path: Path, files: dict[str, str], own: str, cores: float) -> None:
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    assert quota(tmp_path / "groups", tmp_path / "own") == cores


@pytest.mark.parametrize(
    ("machine", "affinity", "share", "allowed"),
    [(8, 8, math.inf, 8), (8, 3, math.inf, 3), (8, 8, 2.5, 3), (8, 2, 6.0, 2), (8, 8, 0.2, 1), (8, 8, 8.0, 8)],
)
def test_default_threads_of_a_session(
    monkeypatch: pytest.MonkeyPatch, machine: int, affinity: int, share: float, allowed: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr("tightbeam.deploy.runtimes.process.cores.quota", lambda: share)
    assert allowed_cores() == allowed
    assert session_options(None).intra_op_num_threads == (0 if allowed == machine else allowed)  # 0: ONNX Runtime's own
    assert session_options(5).intra_op_num_threads == 5


def test_threads_sleep_soon() -> None:
    assert session_options(None).get_session_config_entry("session.intra_op.spin_duration_us") == "20"
