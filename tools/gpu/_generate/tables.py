"""Tables of `generate.py`: measurements next to the cost model's predictions, to the papers' tables, and to the target.

A measured case is its row of the table of cases; they are given by side and batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tightbeam.deploy import Bundle
from tightbeam.export.writing.entries import sizes_of
from tightbeam.graph_passes import LayerPlan, RunSize
from tightbeam.graph_passes.caches.cost import Machine, WeightCounts, predict
from tools.gpu._generate.case import PEERS
from tools.gpu._generate.make import VARIANTS, WEIGHTS, bundle_folder
from tools.gpu._process import Row

__all__ = ["PAPER_BATCH", "PEER", "Measured", "best_of", "compare_with_papers", "compare_with_target", "predictions"]

Measured = Mapping[tuple[str, int], Mapping[str, Any]]
PEER = "transformers"
TARGET = 10.0
"""Times transformers' best batch."""
PAPER_BATCH = 32
"""The smallest batch of the papers' tables; our smallest takes its place."""
NO_CACHE, CACHE = "transformers no cache", "baseline"
FASTSEQ_TABLE_2 = (
    ("no cache", NO_CACHE, 32, 0.75),
    ("conventional cache", CACHE, 32, 1.0),
    ("de-duplicated cache", "dedup", 32, 1.4),
    ("de-duplicated cache", "dedup", 128, 3.3),
)
"""Row, our side, batch, and speed relative to the conventional cache, as printed (V100 of 16 GB)."""
EL_TABLE_3 = (
    ("multi-head, no cache", NO_CACHE, 32, 1.0),
    ("multi-head, cache", CACHE, 32, 3.0),
    *(("EL", "el", batch, times) for batch, times in ((32, 4.2), (64, 6.6), (128, 11.2), (320, 15.1))),
)
"""Row, our side, batch, and speed relative to no cache, as printed (V100 of 32 GB)."""
EL_TABLE_2 = 5.0
"""BART-large, CNN/DailyMail, beam search, float16: EL at its best batch over multi-head attention at its best."""
EL_TABLE_4 = (
    *((32, "baseline", 6.0), (32, "el", 0.06), (64, "baseline", 12.0), (64, "el", 0.13)),
    *((320, "baseline", 60.0), (320, "el", 0.63)),
)
"""Batch, variant, and GB of cache for a source of 1,024 tokens, as printed."""


def best_of(measured: Measured, *sides: str) -> Mapping[str, Any] | None:
    """The fastest case of some sides."""
    cases = [case for (side, _), case in measured.items() if side in sides]
    return max(cases, key=lambda case: float(case["samples/s"]), default=None)


def predictions(
    measured: Measured, work: Path, precision: str, job: RunSize, rates: Mapping[str, Any]
) -> Iterator[Row]:
    """What the cost model of ``--variant auto`` says of the measured cases. ``job``: sizes but for the batch."""
    weights = WeightCounts(**json.loads((work / WEIGHTS).read_text("utf-8")))
    machine = Machine(bandwidth=rates["bytes"], rate=rates[precision])
    for (variant, B), case in measured.items():
        if variant in PEERS:
            continue
        manifest = Bundle.load(bundle_folder(work, variant, precision), verify=False).manifest
        plan = [LayerPlan(layer.source, layer.generated, layer.reason) for layer in manifest.layers]
        cost = predict(plan, sizes_of(manifest), RunSize(**{**vars(job), "B": B}), weights, machine)
        cells: dict[str, Any] = {"variant": variant, "batch": B}
        for name, predicted in (("step ms", 1e3 * cost.step), ("encoder s", cost.encoder)):
            off = f"{predicted / case[name] - 1:+.0%}"
            cells |= {name: case[name], f"{name}, predicted": predicted, f"{name}, off by": off}
        yield "Predicted and measured", cells


def compare_with_papers(measured: Measured, unit: int) -> Iterator[Row]:
    """The papers' tables in relative form next to ours; what was not measured is left out. ``unit``: our batch for the
    papers' 32; larger ones follow."""

    def at(side: str, batch: int) -> Mapping[str, Any] | None:
        return measured.get((side, batch * unit // PAPER_BATCH))

    for title, rows in (("FastSeq, Table 2", FASTSEQ_TABLE_2), ("EL-attention, Table 3", EL_TABLE_3)):
        base = next(printed for _, side, batch, printed in rows if (side, batch) == (CACHE, PAPER_BATCH))
        for name, side, batch, printed in rows:
            cells: dict[str, Any] = {"paper's row": name, "ours": side, "batch": batch * unit // PAPER_BATCH}
            if (case := at(side, batch)) is not None and (ours := at(CACHE, PAPER_BATCH)) is not None:
                cells[f"times {CACHE}"] = case["samples/s"] / ours["samples/s"]
            yield title, {**cells, f"the paper, times {CACHE}": printed / base}
    el = best_of(measured, "el")
    for other in (CACHE, PEER):
        best = best_of(measured, other)
        times = None if el is None or best is None else el["samples/s"] / best["samples/s"]
        yield "EL-attention, Table 2", {"el's best over that of": other, "times": times, "the paper": EL_TABLE_2}
    for batch, variant, printed in EL_TABLE_4:
        gib = (at(variant, batch) or {}).get("source cache GiB")
        cells = {"batch": batch * unit // PAPER_BATCH, "variant": variant, "kept for the source, GiB": gib}
        yield "EL-attention, Table 4", {**cells, "the paper, GB": printed}


def compare_with_target(measured: Measured) -> Iterator[Row]:
    """Compare our best batch with transformers' best, and say what the ratio would be without the steps."""
    peer, ours = best_of(measured, PEER), best_of(measured, *VARIANTS)
    if peer is None or ours is None:
        return
    times = ours["samples/s"] / peer["samples/s"]
    cells = {f"{name}, best batch": f"{case['side']}, {case['batch']}" for name, case in ((PEER, peer), ("ours", ours))}
    encoder_alone = ours["batch"] / ours["encoder s"] / peer["samples/s"]
    verdict = {"times": times, "without the steps": encoder_alone, f"at least {TARGET:g} times": times >= TARGET}
    yield "Target", {**cells, **verdict}
