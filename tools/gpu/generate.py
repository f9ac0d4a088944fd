"""End to end on a GPU: samples a second and memory of transformers and of our bundles, BART-large's sizes.

A section of the GPU check. A checkpoint (random weights, a fixed seed) and its bundles are made in a folder, minutes
on the CPU, and used again by a second call. Then: the predictions of the cost model; float32 tokens against
transformers on the same device; and each side at each batch, in half precision and a process of its own, until memory
ends. A side whose tokens are wrong is not timed. What time did not
suffice for, a second call measures.

Peak memory is what the device gave the process beyond its context, sampled for all sides alike: allocators that cache
hold more than they need. torch's own count is a second figure.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.deploy import Bundle
from tightbeam.graph_passes import RunSize
from tightbeam.graph_passes.caches.cost import Machine, RunCost, WeightCounts
from tools.gpu._generate.case import PEERS, GenerationJob
from tools.gpu._generate.layout import EQUAL, VARIANTS, bundle_folder, checkpoint_folder
from tools.gpu._generate.process import DONE, LATE, OUT_OF_MEMORY, Ended, run_case
from tools.gpu._generate.tables import (
    GIB,
    PAPER_BATCH,
    PEER,
    Measured,
    best_of,
    compare_with_papers,
    compare_with_predictions,
    compare_with_target,
    measured_of,
    prediction_of,
)
from tools.gpu._process import read, rows
from tools.gpu._results import Results, figures_of
from tools.gpu.rates import RATES

BATCHES = (32, 64, 128, 256, 320, 512, 1024, 2048, 4096)
"""Doubled; and the 320 of EL-attention's Table 3."""
COMPILED, NO_CACHE = "transformers compiled", "transformers no cache"
MEASURE_S, CASE_S, COMPILE_S = 60, 150, 240
"""Seconds after which a case times no further generation; and after which it is killed, without and with a compiler."""
OUT_OF_TIME = "no time left"
CASE_COLUMNS = (
    *("side", "batch", "samples/s", "times transformers", "seconds", "encoder s", "step ms"),
    *("peak GiB", "torch's GiB", "source cache GiB", "generated cache GiB", "tokens as transformers", "ended"),
)
Notes = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Settings of all cases. ``job``: of the smallest batch. ``until``: no case begins after it (seconds of
    ``time.monotonic``).
    """

    work: Path
    device: str
    precision: str
    job: GenerationJob
    rounds: int
    measure_s: float
    case_s: float
    compile_s: float
    until: float

    def request(self, side: str, batch: int) -> dict[str, Any]:
        """The request of a process of `_generate/case.py`."""
        ours = bundle_folder(self.work, side, self.precision)
        return {
            "side": side,
            "model": str(checkpoint_folder(self.work) if side in PEERS else ours),
            "device": self.device,
            "precision": self.precision,
            "job": vars(replace(self.job, batch=batch)),
            "rounds": self.rounds,
            "seconds": self.measure_s,
            "tokens": str(self.tokens(side, batch)),
        }

    def tokens(self, side: str, batch: int) -> Path:
        return self.work / f"tokens-{side.replace(' ', '-')}-{self.precision}-{batch}.npy"

    def limit_s(self, side: str) -> float:
        return self.compile_s if side == COMPILED else self.case_s

    def run(self, side: str, batch: int) -> Ended:
        left = self.until - time.monotonic()
        if left <= 0:
            return Ended(OUT_OF_TIME)
        limit_s = self.limit_s(side)
        ended = run_case("tools.gpu._generate.case", self.request(side, batch), self.work, min(limit_s, left))
        return Ended(OUT_OF_TIME) if left < limit_s and ended.how.startswith(LATE) else ended


def run(folder: str, rehearse: bool, seconds: float) -> tuple[()]:
    """Measure and compare; a case that cannot be measured is a row with the reason."""
    until, output, work = time.monotonic() + seconds, Path(folder, "generate.jsonl"), Path(folder, "generate")
    batches, rounds = ((2,), 1) if rehearse else (BATCHES, 3)
    device, precision = ("cpu", "fp32") if rehearse else ("cuda", "fp16")
    measured = rows(read(Path(folder, "rates.jsonl")), RATES)
    before, results = figures_of(output), Results(output)
    work.mkdir(parents=True, exist_ok=True)
    shared = {"work": str(work), "variants": VARIANTS, "precision": precision, "tiny": rehearse}
    made = run_case("tools.gpu._generate.bundles", shared, work, until - time.monotonic())
    _report_bundles(results, made)
    if "weights" not in made.found:
        raise SystemExit(f"error: the checkpoint was not made ({made.how}: {made.detail}); nothing to measure")
    vocabulary = json.loads((checkpoint_folder(work) / "config.json").read_text("utf-8"))["vocab_size"]
    sizes = (40, 12) if rehearse else (1024, 60)
    job = GenerationJob(batches[0], *sizes, beams=4, ngram=3, vocabulary=vocabulary)
    setting = Setting(work, device, precision, job, rounds, MEASURE_S, CASE_S, COMPILE_S, until)
    predictions: dict[tuple[str, int], RunCost] = {}
    if not measured:
        results.note("No predictions, which need the rates of this machine: run the section rates first.")
    else:
        machine = Machine(bandwidth=measured[-1]["bytes"], rate=measured[-1][precision])
        predictions = predict_all(results, setting, VARIANTS, batches, WeightCounts(**made.found["weights"]), machine)
    request = {**shared, "device": device, "source": job.source, "new_tokens": job.new_tokens}

    def compare(some: Sequence[str]) -> Ended:
        limit_s = max(1.0, until - time.monotonic())
        return run_case("tools.gpu._generate.check", {**request, "variants": some}, work, limit_s)

    checks = before.get("checks", [])
    if not {one["variant"] for one in checks} >= set(VARIANTS):
        checks = check_all(results, compare, VARIANTS)
    right = report_checks(results, checks, VARIANTS)
    cases = Cases(results, setting.run, setting.tokens, before.get("cases", {}))
    measure_all(cases, [PEER, *right], batches)
    compare_with_predictions(results, predictions, cases.measured)
    compare_with_papers(results, cases.measured, batches[0] if rehearse else PAPER_BATCH)
    compare_with_target(results, cases.measured)
    return ()


def _report_bundles(results: Results, made: Ended) -> None:
    results.figure("export_seconds", made.found.get("seconds", {}))
    for name, reason in made.found.get("refused", {}).items():
        results.note(f"No bundle {name}: {reason}")
    if made.how != DONE:
        results.note(f"Making the bundles {made.how}: {made.detail}")


def predict_all(
    results: Results,
    setting: Setting,
    variants: Sequence[str],
    batches: Sequence[int],
    weights: WeightCounts,
    machine: Machine,
) -> dict[tuple[str, int], RunCost]:
    """Predictions for every variant that has a bundle, and every batch."""
    results.figure("rates", vars(machine))
    itemsize = {"fp16": 2, "fp32": 4}[setting.precision]
    columns = ("variant", "batch", "encoder s", "step ms", "samples/s")
    found = {}
    for variant in variants:
        folder = bundle_folder(setting.work, variant, setting.precision)
        if not folder.exists():
            continue
        bundle = Bundle.load(folder, verify=False)
        for B in batches:
            job = RunSize(B=B, M=setting.job.beams, N=setting.job.source, T=setting.job.new_tokens, itemsize=itemsize)
            one = found[variant, B] = prediction_of(bundle, job, weights, machine)
            cells = (variant, B, f"{one.encoder:.3g}", f"{1e3 * one.step:.3g}", f"{B / one.total:.1f}")
            results.row("Predicted before anything was measured", columns, cells)
    return found


def check_all(results: Results, run: Callable[[Sequence[str]], Ended], variants: Sequence[str]) -> list[Notes]:
    """The checks of all variants: from one process, and if that ends on a variant, from another for the next ones.
    ``run``: a process for some variants."""
    checks: list[Notes] = []
    left = list(variants)
    while left:
        ended = run(left)
        checks += ended.found.get("checks", [])
        if ended.how == DONE:
            break
        results.note(f"Comparing the tokens of {', '.join(left)}: {ended.how}: {ended.detail}")
        compared = {one["variant"] for one in checks}
        left = [variant for variant in left if variant not in compared][1:]
    return checks


def report_checks(results: Results, checks: Sequence[Notes], variants: Iterable[str]) -> list[str]:
    """The variants whose tokens are right."""
    results.figure("checks", checks)
    columns = ("variant", "tokens", "float32 tokens against transformers on this device")
    by_variant = {one["variant"]: one for one in checks}
    right = []
    for variant in variants:
        one = by_variant.get(variant)
        if one is not None:
            results.row("Checked", columns, (variant, one["tokens"], one["said"]))
        if one is not None and one["said"].startswith(EQUAL):
            right.append(variant)
        else:
            results.note(f"{variant} is not timed: its tokens differ from transformers', or were not compared.")
    return right


class Cases:
    """Cases as they are measured: a row and a figure each. ``run``: measures a side at a batch. ``tokens``: the file
    for the generated tokens. ``known``: figures of cases that were measured before, or had no memory."""

    def __init__(
        self,
        results: Results,
        run: Callable[[str, int], Ended],
        tokens: Callable[[str, int], Path],
        known: Mapping[str, Notes],
    ) -> None:
        self.measured: list[Measured] = []
        self._results = results
        self._run = run
        self._tokens = tokens
        self._known = known
        self._figures = dict(known)

    def measure(self, side: str, batch: int) -> bool:
        """Measure one case; False if it could not be measured."""
        name = f"{side}, {batch}"
        known = self._known.get(name)
        ended = self._run(side, batch) if known is None else Ended(known["how"], found=known)
        if ended.how == OUT_OF_MEMORY:
            self._keep(name, {"how": ended.how})
        if ended.how != DONE:
            empty = [""] * (len(CASE_COLUMNS) - 3)
            why = ended.how + (f": {ended.detail}" if ended.detail else "")
            self._results.row("End to end", CASE_COLUMNS, (side, batch, *empty, why))
            return False
        found = {"how": DONE, **ended.found}
        if known is None:
            found |= {"new_tokens": self._new_tokens(side, batch), "equal": self._share_as_peer(side, batch)}
        self._keep(name, found)
        case = measured_of(side, {**found, "batch": batch}, statistics.median(found["seconds"]), found)
        self.measured.append(case)
        self._results.row("End to end", CASE_COLUMNS, self._cells(case, found))
        if not found["repeatable"]:
            self._results.note(f"{name}: not every run gave the same tokens.")
        for warning in found["warnings"]:
            self._results.note(f"{name}: {warning}")
        return True

    def _keep(self, name: str, found: Notes) -> None:
        self._figures[name] = found
        self._results.figure("cases", self._figures)

    def _new_tokens(self, side: str, batch: int) -> int:
        """Count of new tokens, without the start token."""
        return int(np.load(self._tokens(side, batch)).shape[1]) - 1

    def _share_as_peer(self, side: str, batch: int) -> float | None:
        """Share of tokens that equal those of transformers for the same samples, at its largest measured batch up to
        this one; None if its tokens are on another machine.
        """
        peers = [case.batch for case in self.measured if case.side == PEER and case.batch <= batch]
        there = [file for peer in sorted(peers) if (file := self._tokens(PEER, peer)).exists()]
        if not there:
            return None
        theirs = np.load(there[-1])
        ours = np.load(self._tokens(side, batch))[: len(theirs)]
        return float(np.mean(ours == theirs)) if ours.shape == theirs.shape else 0.0

    def _cells(self, case: Measured, found: Notes) -> Sequence[object]:
        peer = next((one for one in self.measured if (one.side, one.batch) == (PEER, case.batch)), None)
        cache = case.cache_bytes
        return (
            *(case.side, case.batch, f"{case.samples_per_second:.1f}"),
            "" if peer is None else f"{case.samples_per_second / peer.samples_per_second:.2f}",
            f"{case.seconds:.3g}",
            "" if case.encoder_s is None else f"{case.encoder_s:.3g}",
            "" if case.step_s is None else f"{1e3 * case.step_s:.3g}",
            f"{case.peak_bytes / GIB:.2f}",
            f"{found['peak_bytes_torch'] / GIB:.2f}" if "peak_bytes_torch" in found else "",
            *(("", "") if cache is None else (f"{part / GIB:.3g}" for part in cache)),
            "" if found["equal"] is None else f"{found['equal']:.1%}",
            DONE,
        )


def measure_all(cases: Cases, sides: Sequence[str], batches: Sequence[int]) -> None:
    """Every side at the smallest batch, then at the next; one that cannot be measured goes no further. At the end the
    other ways of transformers: compiled at the smallest and at its best batch, without a cache at the smallest."""
    climbing = list(sides)
    for batch in batches:
        climbing = [side for side in climbing if cases.measure(side, batch)]
    best = best_of(case for case in cases.measured if case.side == PEER)
    if cases.measure(COMPILED, batches[0]) and best is not None and best.batch != batches[0]:
        cases.measure(COMPILED, best.batch)
    cases.measure(NO_CACHE, batches[0])
