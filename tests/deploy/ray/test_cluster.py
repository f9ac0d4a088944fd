"""`run-model --ray` on a cluster of several node processes: the tokens of one machine, also where workers are lost."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.commands import process
from support.ray_cluster import RayCluster, ray_cluster, wait_for

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ray", "pyarrow"))) or sys.platform != "linux",
    reason="needs the extra ray, and /proc",
)

BUNDLE = Path(__file__).resolve().parents[2] / "data" / "bundle-format-2"
OPTIONS = ("--num-beams", "4", "--max-new-tokens", "12", "--threads", "1")
ROWS = 240
EACH = 6
TEXTS = [f"the town of {number} hills has a river and {number * 7 % 61} small boats" for number in range(ROWS)]
HOSTILE = {40: "not JSON", 90: '{"id": 90}', 91: "", 150: '{"id": 150, "text": null}', 200: '{"id": 200, "text": " "}'}
"""Lines of the JSON file that cannot be run, by index."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(2) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text file and a file of JSON lines, hostile ones among them."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS[:30]))
    (folder / "inside").mkdir()
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(TEXTS)]
    for index, line in HOSTILE.items():
        lines[index] = line
    (folder / "inside" / "b.jsonl").write_text("\n".join(lines))
    (folder / "_SUCCESS").touch()
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The tokens of each text on one machine."""
    file = tmp_path_factory.mktemp("alone") / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    return [record["tokens"] for record in process(BUNDLE, file, "--json", *OPTIONS).records]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()]


def check(found: list[dict[str, Any]], alone: list[list[int]]) -> None:
    """Every row is there once, in the order of its file; each has the tokens that it gets on one machine."""
    expected = [("a.txt", number) for number in range(1, 31)]
    expected += [("inside/b.jsonl", number) for number in range(1, ROWS + 1)]
    assert [(record["file"], record["line"]) for record in found] == expected
    for record in found:
        index = record["line"] - 1
        if record["file"] == "inside/b.jsonl" and index in HOSTILE:
            assert record["error"] and "tokens" not in record
        else:
            assert record["tokens"] == alone[index]
            assert record["key"] == (index if record["file"] == "inside/b.jsonl" else None)


@pytest.mark.slow
def test_a_killed_worker_loses_and_doubles_nothing(
    cluster: RayCluster, data: Path, alone: list[list[int]], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    command = (BUNDLE, data, "--output", results, "--partition-rows", EACH, "--key-field", "id", *OPTIONS)
    run = cluster.start(*command)
    wait_for(lambda: len(list(results.rglob("*.jsonl"))) > 2 or run.poll() is not None)
    killed = cluster.kill_worker()
    assert len(list(results.rglob("*.jsonl"))) < (30 + ROWS) // EACH, "the run was through before the worker was killed"
    out, err = run.communicate(timeout=120)
    assert (run.returncode, out) == (1, ""), err
    lines = err.splitlines()
    assert lines[0] == "note: 270 rows in 45 partitions, 2 actors of 1 core"
    named = {line.rpartition(":")[0].partition(": ")[2].partition(":")[0] for line in lines[1 : 1 + len(HOSTILE)]}
    assert named == {f"inside/b.jsonl, row {index + 1}" for index in HOSTILE}
    assert lines[-1] == f"error: {len(HOSTILE)} of the rows could not be run; each is named above"
    assert killed not in cluster.workers()
    check(records(results), alone)
    assert not list(results.rglob(".*")), "a file that was half written is left"


@pytest.mark.slow
def test_the_same_command_runs_what_is_missing(
    cluster: RayCluster, data: Path, alone: list[list[int]], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    command = (BUNDLE, data, "--output", results, "--partition-rows", EACH, "--key-field", "id", *OPTIONS)
    cluster.start(*command).communicate(timeout=120)
    check(records(results), alone)
    files = {file: file.stat().st_mtime_ns for file in results.rglob("*.jsonl")}
    missing = results / "inside" / "b.jsonl-00002.jsonl"
    missing.unlink()
    (data / "later.txt").write_text(f"{TEXTS[0]}\n")
    run = cluster.start(*command)
    out, err = run.communicate(timeout=120)
    (data / "later.txt").unlink()
    assert (run.returncode, out) == (1, ""), err
    assert err.splitlines()[:2] == [
        f"note: {results} has the results of 44 of 46 partitions",
        "note: 7 rows in 2 partitions, 2 actors of 1 core",
    ]
    failed = f'error: {len(HOSTILE)} rows of earlier runs could not be run; each has its "error" in the results'
    assert err.splitlines()[-1] == failed
    added = results / "later.txt-00000.jsonl"
    assert json.loads(added.read_text())["tokens"] == alone[0]
    added.unlink()
    check(records(results), alone)
    assert all(file == missing or file.stat().st_mtime_ns == before for file, before in files.items())


@pytest.mark.slow
def test_a_lost_machine_loses_and_doubles_nothing(data: Path, alone: list[list[int]]) -> None:
    """On standard output, in the order of the input."""
    command = (BUNDLE, data, "--json", "--partition-rows", EACH, "--key-field", "id", *OPTIONS)
    with ray_cluster(3) as cluster, cluster.start(*command) as run:
        assert run.stdout is not None and run.stderr is not None
        first = run.stdout.readline()
        cluster.remove_node()
        rest, err = run.stdout.read(), run.stderr.read()
    assert run.returncode == 1, err
    check([json.loads(line) for line in [first, *rest.splitlines()]], alone)
    assert all(line.startswith(("note: ", "error: ", "265 rows, ")) for line in err.splitlines())


@pytest.mark.slow
def test_rows_that_end_their_process_are_given_up(cluster: RayCluster, tmp_path: Path) -> None:
    """Here every process is killed as soon as it is there; the run ends, and says so in one line for each partition."""
    file = tmp_path / "a.txt"
    file.write_text(f"{TEXTS[0]}\n" * 20_000)
    run = cluster.start(BUNDLE, file, "--output", tmp_path / "results", "--partition-rows", 20_000, *OPTIONS)
    killed: set[int] = set()
    while run.poll() is None and len(killed) < 4:
        before = set(cluster.workers()) - killed
        if before:
            wait_for(lambda pids=before: run.poll() is not None or busy(pids))  # type: ignore[misc]
            killed.add(cluster.kill_worker())
    out, err = run.communicate(timeout=240)
    assert (run.returncode, out) == (1, ""), err
    assert "error: a.txt, rows 1 to 20000: its process ended 4 times" in err
    assert err.splitlines()[-1] == "error: 1 partition could not be run; the same command again runs them"


def busy(pids: set[int]) -> bool:
    """True where one of the processes runs a task, which Ray's title shows, and has used some seconds."""
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if sum(map(int, fields[11:13])) > 600:
            return True
    return False


@pytest.mark.slow
def test_a_pipeline_of_ones_own(cluster: RayCluster, alone: list[list[int]], tmp_path: Path) -> None:
    """`Generate` in `map_batches`, from Parquet to Parquet; and a cluster that is started by the command."""
    script = f"""
import logging, pyarrow, ray
from tightbeam.deploy.ray import Generate
ray.init(log_to_driver=False, logging_level=logging.ERROR)
rows = pyarrow.table({{"id": list(range(30)), "article": {TEXTS[:29]!r} + [None]}})
how = dict(bundle={str(BUNDLE)!r}, column="article", num_beams=4, max_new_tokens=12)
made = ray.data.from_arrow(rows).repartition(5).map_batches(
    Generate, fn_constructor_kwargs=how, batch_format="pyarrow", batch_size=10, num_cpus=1, concurrency=1)
made.write_parquet({str(tmp_path / "made")!r})
"""
    done = process(command=[sys.executable, "-c", script], env=cluster.environment())
    assert done.code == 0, done.err
    arrow = pytest.importorskip("pyarrow.parquet")
    found = sorted(arrow.read_table(tmp_path / "made").to_pylist(), key=lambda row: row["id"])
    assert [row["generated_tokens"] for row in found[:29]] == alone[:29]
    assert found[29]["generated_error"] and found[29]["generated_tokens"] is None
