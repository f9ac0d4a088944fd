"""The comparison with other engines (`python -m tools.bench.peers`): its workers, and that wrong tokens end it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from support.bundles import BundleCache
from support.checkpoints import CheckpointCache
from tightbeam.deploy import Runner
from tools.bench.peer_process import without_padding
from tools.bench.peers import CTRANSLATE2, TRANSFORMERS, Peer, PeerError, Times, Work, _measure, _table

ROWS = [[0, 5, 6, 7, 2], [0, 8, 9, 2], [0, 11, 2]]
SETTINGS = {
    "num_beams": 3,
    "min_new_tokens": 5,
    "max_new_tokens": 5,
    "no_repeat_ngram_size": 3,
    "length_penalty": 1.0,
    "early_stopping": True,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}


def test_workers_give_the_tokens_of_the_runner(
    bundles: BundleCache, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    runner = Runner.load(bundles("dedup"))
    eos = runner.manifest.generation["eos_token_id"]
    expected = [
        without_padding(runner.generate(np.array([row]), **SETTINGS).sequences[0].tolist(), eos) for row in ROWS
    ]
    assert [len(row) for row in expected] == [5, 5, 5]
    for engine, folder in (("tightbeam", bundles("dedup")), ("transformers", checkpoints("bart"))):
        peer = Peer(engine, Path(sys.executable), engine, folder, 1, tmp_path / "log")
        try:
            found = peer.run([ROWS[:2], ROWS[2:]], SETTINGS, eos)
        finally:
            peer.close()
        assert found["tokens"] == expected
        assert found["seconds"] > 0 and found["processor_seconds"] > 0
        assert 10 < peer.loaded["memory_mb"]["now"] <= found["memory_mb"]["peak"]


def test_failure_of_a_worker_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"^mine ended with code 1 \(.*no bundle.*\); see .*/log$") as failed:
        Peer("mine", Path(sys.executable), "tightbeam", tmp_path, 1, tmp_path / "log")
    assert "\n" not in str(failed.value)


def test_missing_environment_names_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.bench.peers", "--work", str(tmp_path), "--ctranslate2", str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 1
    assert re.fullmatch(r"error: .* has no ctranslate2; run: python -m venv .*ctranslate2==[\d.]+\n", done.stderr)


class _Fixed:
    """A peer that always gives the same tokens."""

    def __init__(self, name: str, tokens: list[list[int]]) -> None:
        self.name = name
        self.tokens = tokens

    def run(self, batches: list[list[list[int]]], settings: dict[str, Any], eos: int) -> dict[str, Any]:
        tokens = self.tokens[: sum(map(len, batches))]
        return {"tokens": tokens, "seconds": 2.0, "processor_seconds": 1.0, "memory_mb": {"peak": 70.0}}


@pytest.mark.parametrize("wrong", [TRANSFORMERS, CTRANSLATE2, "Tightbeam dedup"])
def test_wrong_tokens_of_tightbeam_end_the_run_and_others_are_counted(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr("tools.bench.peers.SETTLE_SECONDS", 0)
    names = (TRANSFORMERS, CTRANSLATE2, "Tightbeam dedup")
    peers = [_Fixed(name, [[5, 6], [7, 8 if name == wrong else 9]]) for name in names]
    measure = lambda: _measure(cast(list[Peer], peers), Work(ROWS[:2], {}, 2), [1, 2], 2, Console(quiet=True))  # noqa: E731
    if wrong != CTRANSLATE2:
        with pytest.raises(PeerError, match="1 of 2 sequences are wrong"):
            measure()
        return
    figures, equal = measure()
    assert equal == {TRANSFORMERS: (4, 4), CTRANSLATE2: (2, 4), "Tightbeam dedup": (4, 4)}
    assert [(times.batch, times.tokens, times.seconds) for times in figures] == [(1, 4, [2.0, 2.0])] * 3 + [
        (2, 4, [2.0, 2.0])
    ] * 3


def test_table_has_rates_and_ratios() -> None:
    figures = [
        Times(TRANSFORMERS, 8, 8, 480, [8.0, 6.0, 10.0], peak_mb=3000),
        Times(CTRANSLATE2, 8, 8, 480, [4.0], peak_mb=2000),
        Times("Tightbeam dedup", 8, 8, 480, [2.0], peak_mb=1900),
    ]
    rows = _table(figures, lines_of_text=False).splitlines()
    assert rows[2] == "| 8 | transformers | 8.00 (6.00, 10.00) | 1 | 60 | 1.00 | 0.50 | 3,000 |"
    assert rows[4] == "| 8 | Tightbeam dedup | 2.00 (2.00, 2.00) | 4 | 240 | 4.00 | 2.00 | 1,900 |"
    assert json.loads(json.dumps(figures[0].as_json()))["tokens_per_second"] == 60


@pytest.mark.parametrize(
    ("row", "tokens"), [([2, 0, 5, 2, 1, 1], [0, 5]), ([2, 0, 5], [0, 5]), ([2, 2], []), ([-1, 0, 5], [0, 5])]
)
def test_padding_and_start_token_are_dropped(row: list[int], tokens: list[int]) -> None:
    assert without_padding(row, 2) == tokens
