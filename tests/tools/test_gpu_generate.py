"""Section `generate` of the GPU check on the CPU: its tables, a wrong token, and cases that end badly."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightbeam.deploy.search import SearchResult
from tools.gpu import _process, generate, rates
from tools.gpu._generate import case, make, tables
from tools.gpu._process import Ended, rows

VARIANTS = ["dedup", "el", "kcache", "baseline"]
PEERS = ["transformers", "transformers compiled", "transformers no cache"]
BEST = "times transformers"


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """What a rehearsal found, and its folder. In one process, each case takes no seconds to import what it needs."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "rates.jsonl").write_text(json.dumps([rates.RATES, {"bytes": 3e10, "fp32": 1e11}]))

    def run(function: str, arguments: dict[str, Any], output: Path, limit_s: float) -> Ended:
        module, _, name = function.partition(":")
        made = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
        output.write_text("".join(json.dumps(found) + "\n" for found in made))
        return Ended("passed")

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")  # as in processes of their own
        patch.setattr(_process, "run", run)
        return json.loads(json.dumps(list(generate.run(str(folder), True, 300.0)))), folder / "generate"


@pytest.mark.slow
def test_every_side_is_checked_predicted_and_timed(rehearsed: tuple[list[Any], Path]) -> None:
    found, _ = rehearsed
    checked, cases = rows(found, generate.CHECKED), rows(found, generate.CASES)
    assert [(row["variant"], row[generate.VERDICT]) for row in checked] == [(name, "equal") for name in VARIANTS]
    assert all(row["tokens"] > 20 for row in checked)
    assert [row["side"] for row in cases] == [PEERS[0], *VARIANTS, *PEERS[1:]]
    assert {(row["ended"], row["tokens as transformers"]) for row in cases} == {("passed", "100.0%")}
    assert all(row["seconds"] > 0 and row[BEST] > 0 for row in cases)
    assert [row["variant"] for row in rows(found, "Predicted and measured")] == VARIANTS
    kept = {row["side"]: row.get("source cache GiB") for row in cases}
    assert kept["baseline"] == 2 * 2 * 4 * kept["el"] == 4 * kept["dedup"]
    fastseq, el = rows(found, "FastSeq, Table 2"), rows(found, "EL-attention, Table 3")
    assert [round(row["the paper, times baseline"], 2) for row in el] == [0.33, 1, 1.4, 2.2, 3.73, 5.03]
    assert fastseq[1]["times baseline"] == el[1]["times baseline"] == 1
    assert "times baseline" not in el[-1]
    assert len(rows(found, "EL-attention, Table 4")) == 6 and len(rows(found, "Target")) == 1
    assert not [note for note in found if isinstance(note, str)]


@pytest.mark.slow
def test_a_wrong_token_is_found(rehearsed: tuple[list[Any], Path], tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(rehearsed[1], work)
    shift_largest_weight(make.bundle_folder(work, "el", "fp32") / "weights.safetensors")
    ((_, cells),) = case.check("el", str(work), "cpu", 40, 12)
    assert cells[generate.VERDICT].startswith("differs: sample 0, token 2 is ")


def shift_largest_weight(path: Path) -> None:
    """Shift the rows of the largest weight by one."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start])
    largest = max(entries.values(), key=lambda entry: entry["data_offsets"][1] - entry["data_offsets"][0])
    place = slice(*(start + offset for offset in largest["data_offsets"]))
    weight = np.frombuffer(bytes(content[place]), np.float32).reshape(largest["shape"])
    content[place] = np.roll(weight, 1, axis=0).tobytes()
    path.write_bytes(content)


def test_verdicts_equal_tie_and_different() -> None:
    def result(tokens: list[list[int]], scores: list[float]) -> SearchResult:
        return SearchResult(np.array(tokens), np.array(scores, np.float32))

    expected = result([[2, 5, 6], [2, 7, 8]], [-1.0, -3.0])
    assert case.verdict(expected, expected) == "equal"
    assert case.verdict(result([[2, 5, 6], [2, 9, 8]], [-1.0, -3.000001]), expected) == "equal but for 1 ties"
    assert case.verdict(result([[2, 5, 6], [2, 7, 9]], [-1.0, -3.01]), expected).startswith(
        "differs: sample 1, token 2 is 9, expected 8"
    )
    assert case.verdict(result([[2, 5, 6], [2, 7, 9]], [-1.0, float("nan")]), expected).startswith("differs")
    assert case.verdict(result([[2, 5], [2, 7]], [-1.0, -3.0]), expected) == "shape [2, 2], expected [2, 3]"


def end_of(steps: Any) -> tuple[list[Any], Any]:
    """What a generator yields, and what it returns."""
    found = []
    while True:
        try:
            found.append(json.loads(json.dumps(next(steps))))
        except StopIteration as end:
            return found, end.value


def test_a_variant_that_is_wrong_or_crashes_is_not_timed() -> None:
    def run(function: str, arguments: dict[str, Any], limit_s: float) -> tuple[Ended, list[Any]]:
        if arguments["variant"] == "el":
            return Ended("failed", "killed by SIGSEGV"), []
        said = "differs: sample 0" if arguments["variant"] == "kcache" else "equal"
        return Ended("passed"), [["case", {"tokens": 9, generate.VERDICT: said}]]

    found, right = end_of(generate.check_all(run, {}, []))
    assert right == ["dedup", "baseline"]
    checked = rows(found, generate.CHECKED)
    assert checked[1] == {"variant": "el", "why": "failed: killed by SIGSEGV"}
    assert [note.partition(" ")[0] for note in found if isinstance(note, str)] == ["el", "kcache"]
    assert [row["variant"] for row in rows(end_of(generate.check_all(run, {}, checked))[0], generate.CHECKED)] == ["el"]


def test_a_failed_case_is_a_row_and_a_later_call_continues() -> None:
    asked: list[tuple[str, int]] = []
    ends = {
        ("killed", 2): Ended("failed", "killed by SIGKILL"),
        ("hungry", 4): Ended("out of memory", "why"),
        ("slow", 2): Ended(generate.OUT_OF_TIME),
    }

    def run(function: str, arguments: dict[str, Any], limit_s: float) -> tuple[Ended, list[Any]]:
        at = arguments["side"], arguments["batch"]
        asked.append(at)
        found = [["case", {"seconds": 0.5}], f"a note of {at[0]}", ["case", {"step ms": 3.0}]]
        return ends.get(at, Ended("passed")), found

    sides = ["transformers", "killed", "hungry", "slow"]
    found, measured = end_of(generate.measure_all(run, {}, sides, [2, 4, 8], []))
    assert asked == [
        *((side, 2) for side in sides),
        *(("transformers", 4), ("hungry", 4), ("transformers", 8)),
        *((PEERS[1], 2), (PEERS[1], 8), (PEERS[2], 2)),
    ]
    cases = rows(found, generate.CASES)
    assert [(row["ended"], row["why"]) for row in cases[1:2]] == [("failed", "killed by SIGKILL")]
    assert len(measured) == 7 and measured["hungry", 2]["samples/s"] == 4 and measured["hungry", 2][BEST] == 1
    assert measured["hungry", 2]["step ms"] == 3
    assert "slow, 2: no time left" in found and "slow" not in {row["side"] for row in cases}
    asked.clear()
    again, both = end_of(generate.measure_all(run, {}, sides, [2, 4, 8], cases))
    assert asked == [("killed", 2), ("slow", 2)] and both == measured
    assert [row["side"] for row in rows(again, generate.CASES)] == ["killed"]


@pytest.mark.parametrize(("speed", "met"), [(99.0, False), (100.0, True)])
def test_target_compares_best_batches_of_ours_and_transformers(speed: float, met: bool) -> None:
    speeds = {("transformers", 32): 8.0, ("transformers", 64): 10.0, (PEERS[1], 32): 500.0, ("el", 32): 60.0}
    measured = {
        (side, B): {"side": side, "batch": B, "samples/s": rate, "encoder s": B / rate / 4}
        for (side, B), rate in {**speeds, ("el", 320): speed}.items()
    }
    ((_, row),) = tables.compare_with_target(measured)
    assert (row["transformers, best batch"], row["ours, best batch"]) == ("transformers, 64", "el, 320")
    assert row["at least 10 times"] == met and row["without the steps"] == pytest.approx(4 * speed / 10)


def test_a_smaller_batch_has_the_samples_of_a_larger_one() -> None:
    few, many = (case.source_ids(50264, B, 1024) for B in (32, 320))
    np.testing.assert_array_equal(few, many[:32])
    assert few.shape == (32, 1024) and few.min() >= 5 and few.max() > 50000
