"""Section "generate" of gpu_check.py: speed and memory of transformers and of our bundles at BART-large's sizes.

A checkpoint (random weights, a fixed seed) and its bundles are made in a folder, minutes on the CPU, and used again by
a later call. Then: float32 tokens against transformers on the same device; each side at each batch, in half precision
and a process of its own, until memory ends; and the predictions of the cost model. A side whose tokens are wrong is
not timed. What time did not suffice for, a later call measures.

Peak memory is what the device gave the process beyond its context, sampled for all sides alike: allocators that cache
hold more than they need. torch's own count is a second figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tightbeam.graph_passes import RunSize
from tools.gpu import _process
from tools.gpu._generate.case import CASE, COMPILED, EQUAL
from tools.gpu._generate.make import VARIANTS, checkpoint_folder
from tools.gpu._generate.tables import (
    NO_CACHE,
    PAPER_BATCH,
    PEER,
    best_of,
    compare_with_papers,
    compare_with_target,
    predictions,
)
from tools.gpu._process import OUT_OF_MEMORY, PASSED, Ended, Found, read, rows
from tools.gpu.rates import RATES

__all__ = ["CASES", "CHECKED", "run"]

BATCHES = (32, 64, 128, 320, 640, 1280, 2560)
"""Those of EL-attention's Table 3, and then doubled."""
MEASURE_S, CASE_S, COMPILE_S = 60, 150, 240
"""Seconds after which a case times no further generation; and after which it is killed, without and with a compiler."""
CHECKED, CASES = "Checked", "End to end"
"""Titles of the tables, whose rows a later call continues."""
OUT_OF_TIME = "no time left"
VERDICT = "as transformers' in float32"
Cells = dict[str, Any]
Run = Callable[[str, Cells, float], tuple[Ended, list[Any]]]
"""Runs a function of `_generate` with arguments within a limit of seconds; how it ended, and what it found."""


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Measure and compare; a case that cannot be measured is a row with the reason."""
    until, work = time.monotonic() + seconds, Path(folder, "generate")
    work.mkdir(parents=True, exist_ok=True)
    known = read(Path(folder, "generate.jsonl"))
    device, precision, batches = ("cpu", "fp32", (2,)) if rehearse else ("cuda", "fp16", BATCHES)
    source, new_tokens = (40, 12) if rehearse else (1024, 60)

    def run_part(function: str, arguments: Cells, limit_s: float) -> tuple[Ended, list[Any]]:
        if until - time.monotonic() < 1:
            return Ended(OUT_OF_TIME), []
        output = work / "part.jsonl"
        output.unlink(missing_ok=True)
        limit_s = min(limit_s, until - time.monotonic())
        ended = _process.run(f"tools.gpu._generate.{function}", {"work": str(work), **arguments}, output, limit_s)
        return ended, [found for found in read(output) if found is not None]

    ended, made = run_part("make:run", {"precision": precision, "tiny": rehearse}, seconds)
    yield from made
    if ended.outcome != PASSED:
        raise SystemExit(f"error: the checkpoint and its bundles were not made ({ended.outcome}: {ended.reason})")
    sizes = {"device": device, "source": source, "new_tokens": new_tokens}
    right = yield from check_all(run_part, sizes, rows(known, CHECKED))
    vocabulary = json.loads((checkpoint_folder(work) / "config.json").read_text("utf-8"))["vocab_size"]
    case = {**sizes, "precision": precision, "vocabulary": vocabulary, "seconds": MEASURE_S}
    case["rounds"] = 1 if rehearse else 3
    measured = yield from measure_all(run_part, case, [PEER, *right], batches, rows(known, CASES))
    if rates := rows(read(Path(folder, "rates.jsonl")), RATES):
        job = RunSize(B=1, M=4, N=source, T=new_tokens, itemsize={"fp16": 2, "fp32": 4}[precision])
        yield from predictions(measured, work, precision, job, rates[-1])
    else:
        yield "No predictions, which need the rates of this machine: run the section rates first."
    yield from compare_with_papers(measured, batches[0] if rehearse else PAPER_BATCH)
    yield from compare_with_target(measured)


def check_all(run_part: Run, sizes: Cells, known: Sequence[Cells]) -> Generator[Found, None, list[str]]:
    """Compare the tokens of each variant; return the variants whose tokens are right."""
    said: dict[str, str] = {row["variant"]: row.get(VERDICT) or "" for row in known}
    for variant in VARIANTS:
        if not said.get(variant):
            ended, found = run_part("case:check", {"variant": variant, **sizes}, CASE_S)
            cells = {name: value for row in rows(found, CASE) for name, value in row.items()}
            said[variant] = cells.get(VERDICT, "")
            why = {} if said[variant] else {"why": f"{ended.outcome}: {ended.reason}"}
            yield CHECKED, {"variant": variant, **cells, **why}
        if not said[variant].startswith(EQUAL):
            yield f"{variant} is not timed: its tokens differ from transformers', or were not compared."
    return [variant for variant in VARIANTS if said[variant].startswith(EQUAL)]


def measure_all(
    run_part: Run, case: Cells, sides: Sequence[str], batches: Sequence[int], known: Sequence[Cells]
) -> Generator[Found, None, dict[tuple[str, int], Cells]]:
    """Measure every side at the smallest batch, then at the next; one that cannot be measured goes no further. At the
    end the other ways of transformers: compiled at the smallest and at its best batch, without a cache at the smallest.
    Return the rows of the measured cases.
    """
    done = {(row["side"], row["batch"]): row for row in known if row["ended"] in (PASSED, OUT_OF_MEMORY)}

    def measure(side: str, batch: int) -> Generator[Found, None, bool]:
        if (side, batch) not in done:
            arguments = {"side": side, "batch": batch, **case}
            ended, found = run_part("case:measure", arguments, COMPILE_S if side == COMPILED else CASE_S)
            yield from (note for note in found if isinstance(note, str))
            if ended.outcome == OUT_OF_TIME:
                yield f"{side}, {batch}: {OUT_OF_TIME}"
                return False
            row: Cells = {"side": side, "batch": batch, "ended": ended.outcome, "why": ended.reason}
            if ended.outcome == PASSED:
                for cells in rows(found, CASE):
                    row |= cells
                row["samples/s"] = batch / row["seconds"]
                if peer := row if side == PEER else done.get((PEER, batch)):
                    row["times transformers"] = row["samples/s"] / peer["samples/s"]
            done[side, batch] = row
            yield CASES, row
        return bool(done[side, batch]["ended"] == PASSED)

    climbing = list(sides)
    for batch in batches:
        able = []
        for side in climbing:
            if (yield from measure(side, batch)):
                able.append(side)
        climbing = able
    best = best_of(_passed(done), PEER)
    if (yield from measure(COMPILED, batches[0])) and best is not None and best["batch"] != batches[0]:
        yield from measure(COMPILED, best["batch"])
    yield from measure(NO_CACHE, batches[0])
    return _passed(done)


def _passed(done: Mapping[tuple[str, int], Cells]) -> dict[tuple[str, int], Cells]:
    return {at: row for at, row in done.items() if row["ended"] == PASSED}
