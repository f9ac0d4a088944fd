"""Section `generate` of the GPU check on the CPU: its tables, a wrong token, and cases that end badly."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightbeam.deploy.search import SearchResult
from tools.gpu import _process, _results, generate, rates
from tools.gpu._generate import bundles, check, layout, process, tables
from tools.gpu._generate.case import GenerationJob, measure, source_ids

ROOT = Path(__file__).resolve().parents[2]

VARIANTS = ("dedup", "el", "slim", "baseline")
PEERS = ("transformers", "transformers compiled", "transformers no cache")


def rows_of(results: Path, title: str) -> list[dict[str, str]]:
    return _process.rows(_process.read(results), title)


def notes_of(results: Path) -> list[str]:
    return [found for found in _process.read(results) if isinstance(found, str)]


@dataclass(frozen=True)
class Rehearsed:
    output: Path
    work: Path
    least_peak_bytes: int


REHEARSALS = [pytest.param(each, marks=pytest.mark.slow) for each in ("in one process", "as it runs")]


@pytest.fixture(scope="module", params=REHEARSALS)
def rehearsed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """A rehearsal. In one process, each case takes no seconds to import what it needs."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "rates.jsonl").write_text(json.dumps([rates.RATES, {"bytes": 3e10, "fp32": 1e11}]))
    output, work = folder / "generate.jsonl", folder / "generate"
    if request.param == "as it runs":
        arguments = {"folder": str(folder), "rehearse": True, "seconds": 300}
        assert _process.run("tools.gpu.generate:run", arguments, output, 300).outcome == "passed"
        return Rehearsed(output, work, 1)

    works = {
        "tools.gpu._generate.bundles": bundles.make_bundles,
        "tools.gpu._generate.check": check.check,
        "tools.gpu._generate.case": measure,
    }

    def run(module: str, asked: dict[str, Any], folder: Path, limit_s: float) -> Any:
        found: dict[str, Any] = {}
        works[module](json.loads(json.dumps(asked)), found.update)
        return process.Ended("done", found=json.loads(json.dumps(found)))

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")  # as in processes of their own
        patch.setattr(generate, "run_case", run)
        generate.run(str(folder), True, 300.0)
    return Rehearsed(output, work, 0)  # a case takes the memory that one before it left


def test_every_side_is_checked_predicted_and_timed(rehearsed: Rehearsed) -> None:
    output = rehearsed.output
    checked = rows_of(output, "Checked")
    assert [row["variant"] for row in checked] == list(VARIANTS)
    assert {row["float32 tokens against transformers on this device"] for row in checked} == {"equal"}
    assert all(int(row["tokens"]) > 20 for row in checked)
    cases = rows_of(output, "End to end")
    assert [row["side"] for row in cases] == [PEERS[0], *VARIANTS, *PEERS[1:]]
    assert {row["ended"] for row in cases} == {"done"}
    assert {row["tokens as transformers"] for row in cases[1:]} == {"100.0%"}
    assert [row["variant"] for row in rows_of(output, "Predicted before anything was measured")] == list(VARIANTS)
    assert [row["variant"] for row in rows_of(output, "Predicted and measured")] == list(VARIANTS)
    figures = _results.figures_of(output)
    for name in VARIANTS:
        case = figures["cases"][f"{name}, 2"]
        assert min(case["one_token_s"]) > 0 and min(case["seconds"]) > 0
        assert case["peak_bytes"] >= rehearsed.least_peak_bytes
        assert case["new_tokens"] == 12 and case["repeatable"]
    kept = {name: figures["cases"][f"{name}, 2"]["cache_bytes"] for name in VARIANTS}
    assert kept["baseline"][0] == 2 * 2 * 4 * kept["el"][0] == 4 * kept["dedup"][0]
    (target,) = rows_of(output, "Target")
    assert target["target 10x"] == ("met" if figures["times_transformers"] >= 10 else "missed")


def test_rows_of_the_papers_are_beside_ours(rehearsed: Rehearsed) -> None:
    output = rehearsed.output
    fastseq, el = rows_of(output, "FastSeq, Table 2"), rows_of(output, "EL-attention, Table 3")
    assert [row["the paper"] for row in fastseq] == ["0.75", "1.00", "1.40", "3.30"]
    assert [row["the paper"] for row in el] == ["0.33", "1.00", "1.40", "2.20", "3.73", "5.03"]
    assert fastseq[1]["times baseline"] == el[1]["times baseline"] == "1.00"
    assert el[-1]["samples/s"] == "not measured"
    assert len(rows_of(output, "EL-attention, Table 4")) == 6


def test_a_wrong_token_is_found_and_its_side_not_timed(rehearsed: Rehearsed, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(rehearsed.work, work)
    shift_largest_weight(work / "bart-large-el-fp32" / "weights.safetensors")
    request = {"work": str(work), "variants": ["dedup", "el"], "device": "cpu"}
    run_case = process.run_case
    checked = run_case("tools.gpu._generate.check", {**request, "source": 40, "new_tokens": 12}, tmp_path, 120)
    said = {one["variant"]: one["said"] for one in checked.found["checks"]}
    assert said["dedup"] == "equal"
    assert said["el"].startswith("differs: sample 0, token 2 is ")
    output = tmp_path / "results.json"
    results = _results.Results(output)
    checks = checked.found["checks"]
    assert generate.report_checks(results, checks, ["dedup", "el", "slim"]) == ["dedup"]
    assert [note.partition(" ")[0] for note in notes_of(output)] == ["el", "slim"]


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
    verdict = check.verdict

    def result(tokens: list[list[int]], scores: list[float]) -> SearchResult:
        return SearchResult(np.array(tokens), np.array(scores, np.float32))

    expected = result([[2, 5, 6], [2, 7, 8]], [-1.0, -3.0])
    assert verdict(expected, expected) == "equal"
    assert verdict(result([[2, 5, 6], [2, 9, 8]], [-1.0, -3.000001]), expected) == "equal but for 1 ties"
    assert verdict(result([[2, 5, 6], [2, 7, 9]], [-1.0, -3.01]), expected).startswith(
        "differs: sample 1, token 2 is 9, expected 8"
    )
    assert verdict(result([[2, 5, 6], [2, 7, 9]], [-1.0, float("nan")]), expected).startswith("differs")
    assert verdict(result([[2, 5], [2, 7]], [-1.0, -3.0]), expected) == "shape [2, 2], expected [2, 3]"


def test_a_crash_of_the_comparison_skips_one_variant(tmp_path: Path) -> None:
    output, asked = tmp_path / "results.json", []

    def run(variants: list[str]) -> Any:
        asked.append(list(variants))
        before = variants[: variants.index("el")] if "el" in variants else variants
        checks = [{"variant": variant, "tokens": 9, "said": "equal"} for variant in before]
        how = "killed by SIGSEGV" if "el" in variants else "done"
        return process.Ended(how, "", {"checks": checks})

    results = _results.Results(output)
    checks = generate.check_all(results, run, ["dedup", "el", "slim", "baseline"])
    assert asked == [["dedup", "el", "slim", "baseline"], ["slim", "baseline"]]
    right = generate.report_checks(results, checks, ["dedup", "el", "slim", "baseline"])
    assert right == ["dedup", "slim", "baseline"]
    assert "killed by SIGSEGV" in notes_of(output)[0]


SCRIPT = """
import os, signal, sys, time
from tools.gpu._generate.process import serve_case

def work(request, report):
    ending = request["side"]
    report({"started": True})
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "slow":
        time.sleep(60)
    if ending == "hungry" and request["batch"] > 2:
        try:
            raise RuntimeError("CUDA failure 2: out of memory")
        except RuntimeError as error:
            raise ValueError("cannot run the decoder") from error
    if ending == "broken":
        raise KeyError("past_key_values")
    report({"seconds": [0.5, 0.25, 0.3], "one_token_s": [0.1], "peak_bytes": 2**30, "repeatable": True, "warnings": []})
    if ending == "crashes at the end":
        report({"how": "done"})
        os.abort()

serve_case(work)
"""


def test_a_failed_case_is_a_row_and_isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "case.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    np.save(tmp_path / "tokens.npy", np.zeros((2, 13), np.int64))
    asked: list[tuple[str, int]] = []

    def run(side: str, batch: int) -> Any:
        asked.append((side, batch))
        limit_s = 0.5 if side == "slow" else 60
        return process.run_case("case", {"side": side, "batch": batch}, tmp_path, limit_s)

    def measure(output: Path, known: dict[str, Any]) -> Any:
        results = _results.Results(output)
        cases = generate.Cases(results, run, lambda side, batch: tmp_path / "tokens.npy", known)
        sides = ["transformers", "killed", "slow", "hungry", "broken", "crashes at the end"]
        generate.measure_all(cases, sides, [2, 4])
        return cases

    first = tmp_path / "first.json"
    measured = measure(first, {}).measured
    ended = {(row["side"], row["batch"]): row["ended"] for row in rows_of(first, "End to end")}
    assert ended == {
        ("transformers", "2"): "done",
        ("transformers", "4"): "done",
        ("killed", "2"): "killed by SIGKILL",
        ("slow", "2"): "over its limit of 0.5 s",
        ("hungry", "2"): "done",
        ("hungry", "4"): "out of memory: ValueError: cannot run the decoder",
        ("broken", "2"): "failed: KeyError: 'past_key_values'",
        ("crashes at the end", "2"): "done",
        ("crashes at the end", "4"): "done",
        ("transformers compiled", "2"): "done",
        ("transformers compiled", "4"): "done",
        ("transformers no cache", "2"): "done",
    }
    assert len(measured) == 8
    assert {(case.seconds, case.samples_per_second / case.batch) for case in measured} == {(0.3, 1 / 0.3)}

    asked.clear()
    second = tmp_path / "second.json"
    measure(second, _results.figures_of(first)["cases"])
    assert asked == [("killed", 2), ("slow", 2), ("broken", 2)]
    again = [row for row in rows_of(second, "End to end") if row["ended"] == "done"]
    assert again == [row for row in rows_of(first, "End to end") if row["ended"] == "done"]


def test_cases_continue_without_the_tokens_of_earlier_ones(tmp_path: Path) -> None:
    """A later call on a machine without the bundles and tokens of an earlier one."""
    found = {"seconds": [0.5], "one_token_s": [0.1], "peak_bytes": 2**30, "repeatable": True, "warnings": []}
    known = {"transformers, 2": {**found, "how": "done", "new_tokens": 12, "equal": None}, "slim, 2": {"how": "x"}}
    np.save(tmp_path / "el-2.npy", np.zeros((2, 13), np.int64))
    results = _results.Results(tmp_path / "results.json")
    done = process.Ended("done", found=found)
    cases = generate.Cases(
        results, lambda side, batch: done, lambda side, batch: tmp_path / f"{side}-{batch}.npy", known
    )
    assert cases.measure("transformers", 2) and cases.measure("el", 2)
    assert [row["tokens as transformers"] for row in rows_of(tmp_path / "results.json", "End to end")] == ["", ""]
    kept = _results.figures_of(tmp_path / "results.json")["cases"]
    assert sorted(kept) == ["el, 2", "slim, 2", "transformers, 2"]


def test_a_checkpoint_that_was_stopped_half_way_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"work": str(tmp_path), "variants": [], "precision": "fp32", "tiny": True}

    def half(folder: Path, tiny: bool) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bundles, "_make_checkpoint", half)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                bundles.make_bundles(request, lambda found: None)
    checkpoint = layout.checkpoint_folder(tmp_path)
    assert not checkpoint.exists()

    class Traced(Exception):
        pass

    def trace(loaded: object) -> None:
        raise Traced

    monkeypatch.setattr(bundles.pipeline, "trace", trace)
    with pytest.raises(Traced):
        bundles.make_bundles(request, lambda found: None)
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "bart"


def test_no_case_begins_when_time_is_over(tmp_path: Path) -> None:
    job = GenerationJob(2, 40, 12, 4, 3, 101)
    setting = generate.Setting(tmp_path, "cpu", "fp32", job, 3, 1.0, 1.0, 1.0, until=0.0)
    assert setting.run("el", 2).how == "no time left"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("speed", "verdict"), [(99.0, "missed"), (100.0, "met")])
def test_target_compares_best_batches_of_ours_and_transformers(tmp_path: Path, speed: float, verdict: str) -> None:
    output = tmp_path / "results.json"
    results = _results.Results(output)

    def case(side: str, batch: int, samples_per_second: float) -> Any:
        seconds = batch / samples_per_second
        return tables.Measured(side, batch, 60, seconds, seconds / 4 + seconds * 3 / 4 / 60, 1, None)

    sides = [("transformers", 32, 8.0), ("transformers", 64, 10.0), ("transformers compiled", 32, 500.0)]
    tables.compare_with_target(results, [case(*side) for side in (*sides, ("el", 32, 60.0), ("el", 320, speed))])
    (row,) = rows_of(output, "Target")
    assert row["transformers, best batch"] == "transformers, 64: 10.0 samples/s"
    assert row["ours, best batch"] == f"el, 320: {speed:.1f} samples/s"
    assert row["target 10x"] == verdict
    assert notes_of(output)[0].endswith(f"would be {speed / 10 * 4:.1f} times transformers.")


@pytest.mark.parametrize(("dedup_speed", "said"), [(14.0, "holds"), (9.0, "does not hold")])
def test_the_order_of_a_papers_rows_is_compared(tmp_path: Path, dedup_speed: float, said: str) -> None:
    output = tmp_path / "results.json"
    results = _results.Results(output)
    speeds = [("baseline", 32, 10.0), ("dedup", 32, dedup_speed), ("dedup", 128, 30.0)]
    cases = [tables.Measured(side, B, 60, B / speed, None, 1, None) for side, B, speed in speeds]
    tables.compare_with_papers(results, cases)
    rows = rows_of(output, "FastSeq, Table 2")
    assert [row["times baseline"] for row in rows] == ["not measured", "1.00", f"{dedup_speed / 10:.2f}", "3.00"]
    assert notes_of(output) == [
        f"FastSeq, Table 2: the order of its rows {said} for the 3 of 4 that were measured.",
    ]


def test_a_smaller_batch_has_the_samples_of_a_larger_one() -> None:
    few, many = (source_ids(GenerationJob(B, 1024, 60, 4, 3, 50264)) for B in (32, 320))
    np.testing.assert_array_equal(few, many[:32])
    assert few.shape == (32, 1024) and few.min() >= 5 and few.max() > 50000
