"""Tables of `generate.py`: measurements next to the predictions, to the tables of the papers, and to the target."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightbeam.deploy import Bundle
from tightbeam.export.writing.entries import sizes_of
from tightbeam.graph_passes import LayerPlan, RunSize
from tightbeam.graph_passes.caches.cost import Machine, RunCost, WeightCounts, predict
from tools.gpu._generate.case import PEERS
from tools.gpu._results import Results

__all__ = [
    "GIB",
    "PAPER_BATCH",
    "PEER",
    "TARGET",
    "Measured",
    "best_of",
    "compare_with_papers",
    "compare_with_predictions",
    "compare_with_target",
    "measured_of",
    "prediction_of",
]

PEER = "transformers"
TARGET = 10.0
"""Times transformers' best batch."""
GIB = 2**30
OF = ("", ", predicted", ", off by")
NOT_MEASURED = "not measured"
PAPER_BATCH = 32
"""The smallest batch of the papers' tables; our smallest takes its place."""


@dataclass(frozen=True)
class Measured:
    """One measured case: median seconds of a whole generation and of one of a single token, peak bytes, and of ours the
    bytes of both caches. A side that is compiled has no run of a single token.
    """

    side: str
    batch: int
    new_tokens: int
    seconds: float
    one_token_s: float | None
    peak_bytes: int
    cache_bytes: tuple[int, int] | None

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.seconds

    @property
    def step_s(self) -> float | None:
        """Seconds of a step, the host's part of the search included."""
        return None if self.one_token_s is None else (self.seconds - self.one_token_s) / (self.new_tokens - 1)

    @property
    def encoder_s(self) -> float | None:
        """Seconds of all that is done once."""
        return None if self.one_token_s is None or self.step_s is None else self.one_token_s - self.step_s


def best_of(measured: Iterable[Measured]) -> Measured | None:
    return max(measured, key=lambda case: case.samples_per_second, default=None)


def prediction_of(bundle: Bundle, job: RunSize, weights: WeightCounts, machine: Machine) -> RunCost:
    """Prediction of the cost model of ``--variant auto``, for the layers of a bundle."""
    plan = [LayerPlan(layer.source, layer.generated, layer.reason) for layer in bundle.manifest.layers]
    return predict(plan, sizes_of(bundle.manifest), job, weights, machine)


def compare_with_predictions(
    results: Results, predictions: Mapping[tuple[str, int], RunCost], measured: Sequence[Measured]
) -> None:
    """Predicted times next to measured ones, with the relative error of the prediction."""
    columns = ("variant", "batch", *(f"{part}{of}" for part in ("step ms", "encoder s") for of in OF))
    for case in measured:
        predicted = predictions.get((case.side, case.batch))
        if predicted is None or case.step_s is None or case.encoder_s is None:
            continue
        cells: list[str] = [case.side, str(case.batch)]
        for found, expected, unit in ((case.step_s, predicted.step, 1e3), (case.encoder_s, predicted.encoder, 1.0)):
            cells += [f"{found * unit:.3g}", f"{expected * unit:.3g}", f"{expected / found - 1:+.0%}"]
        results.row("Predicted and measured", columns, cells)


def compare_with_target(results: Results, measured: Sequence[Measured]) -> None:
    """Compare our best batch with transformers' best, and say what the ratio would be without the steps."""
    peer = best_of(case for case in measured if case.side == PEER)
    ours = best_of(case for case in measured if case.side not in PEERS)
    columns = ("transformers, best batch", "ours, best batch", "times", f"target {TARGET:g}x")
    if peer is None or ours is None:
        results.row("Target", columns, (*(_best(case) for case in (peer, ours)), "", NOT_MEASURED))
        return
    times = ours.samples_per_second / peer.samples_per_second
    results.figure("times_transformers", times)
    results.row("Target", columns, (_best(peer), _best(ours), f"{times:.2f}", "met" if times >= TARGET else "missed"))
    if ours.encoder_s is not None and ours.encoder_s > 0:
        encoder_alone = ours.batch / ours.encoder_s / peer.samples_per_second
        results.note(
            f"Of {ours.seconds:.3g} s of {ours.side} at batch {ours.batch}, {ours.encoder_s:.3g} s are the encoder; "
            f"without the steps it would be {encoder_alone:.1f} times transformers."
        )


def _best(case: Measured | None) -> str:
    return NOT_MEASURED if case is None else f"{case.side}, {case.batch}: {case.samples_per_second:.1f} samples/s"


FASTSEQ_TABLE_2 = (
    ("no cache", "transformers no cache", 32, 0.75),
    ("conventional cache", "baseline", 32, 1.0),
    ("de-duplicated cache", "dedup", 32, 1.4),
    ("de-duplicated cache", "dedup", 128, 3.3),
)
"""Row, our side, batch, and speed relative to the conventional cache, as printed (V100 of 16 GB)."""

EL_TABLE_3 = (
    ("multi-head, no cache", "transformers no cache", 32, 1.0),
    ("multi-head, cache", "baseline", 32, 3.0),
    ("EL", "el", 32, 4.2),
    ("EL", "el", 64, 6.6),
    ("EL", "el", 128, 11.2),
    ("EL", "el", 320, 15.1),
)
"""Row, our side, batch, and speed relative to no cache, as printed (V100 of 32 GB)."""

EL_TABLE_2 = 5.0
"""BART-large, CNN/DailyMail, beam search, float16: EL at its best batch over multi-head attention at its best."""

EL_TABLE_4 = (
    *((32, "baseline", 6.0), (32, "el", 0.06), (64, "baseline", 12.0), (64, "el", 0.13)),
    *((320, "baseline", 60.0), (320, "el", 0.63)),
)
"""Batch, variant, and GB of cache for a source of 1,024 tokens, as printed."""


def compare_with_papers(results: Results, measured: Sequence[Measured], unit: int = PAPER_BATCH) -> None:
    """The papers' tables in relative form next to ours. ``unit``: our batch for the papers' 32, if it is smaller;
    larger ones follow."""
    at = {(case.side, case.batch): case for case in measured}
    _compare_speeds(results, "FastSeq, Table 2", FASTSEQ_TABLE_2, "baseline", at, unit)
    _compare_speeds(results, "EL-attention, Table 3", EL_TABLE_3, "baseline", at, unit)
    _compare_best(results, measured)
    for batch, variant, printed in EL_TABLE_4:
        case = at.get((variant, batch * unit // PAPER_BATCH))
        kept = NOT_MEASURED if case is None or case.cache_bytes is None else f"{case.cache_bytes[0] / GIB:.3g}"
        columns = ("batch", "variant", "kept for the source, GiB", "the paper, GB")
        results.row("EL-attention, Table 4", columns, (batch * unit // PAPER_BATCH, variant, kept, f"{printed:g}"))


def _compare_speeds(
    results: Results,
    title: str,
    rows: Sequence[tuple[str, str, int, float]],
    base: str,
    at: Mapping[tuple[str, int], Measured],
    unit: int,
) -> None:
    """Speeds relative to ``base`` at the smallest batch, ours and the paper's, and a note on the order of rows."""
    found: list[tuple[float, float]] = []
    ours_base, peer = at.get((base, unit)), at.get((PEER, unit))
    paper_base = next(printed for _, side, batch, printed in rows if (side, batch) == (base, PAPER_BATCH))
    columns = ("paper's row", "ours", "batch", "samples/s", f"times {base}", "the paper", f"times {PEER}")
    for name, side, batch, printed in rows:
        case = at.get((side, batch * unit // PAPER_BATCH))
        speed = None if case is None else case.samples_per_second
        if speed is not None:
            found.append((printed, speed))
        times, by_peer = (
            NOT_MEASURED if speed is None or other is None else f"{speed / other.samples_per_second:.2f}"
            for other in (ours_base, peer)
        )
        said = NOT_MEASURED if speed is None else f"{speed:.1f}"
        relative = f"{printed / paper_base:.2f}"
        results.row(title, columns, (name, side, batch * unit // PAPER_BATCH, said, times, relative, by_peer))
    speeds = [speed for _, speed in sorted(found)]
    if len(speeds) > 1:
        holds = "holds" if speeds == sorted(speeds) else "does not hold"
        results.note(f"{title}: the order of its rows {holds} for the {len(speeds)} of {len(rows)} that were measured.")


def _compare_best(results: Results, measured: Sequence[Measured]) -> None:
    """Table 2: each side at its best batch."""
    best = {side: best_of(case for case in measured if case.side == side) for side in ("el", "baseline", PEER)}
    columns = ("el, best batch", "over", "times", "the paper")
    el = best.pop("el")
    for other in best.values():
        times = NOT_MEASURED
        if el is not None and other is not None:
            times = f"{el.samples_per_second / other.samples_per_second:.2f}"
        results.row("EL-attention, Table 2", columns, (_best(el), _best(other), times, f"{EL_TABLE_2:g}"))


def measured_of(side: str, job: Mapping[str, Any], median_s: float, found: Mapping[str, Any]) -> Measured:
    """A measured case from the report of `case.py`."""
    cache = found.get("cache_bytes")
    return Measured(
        side=side,
        batch=job["batch"],
        new_tokens=job["new_tokens"],
        seconds=median_s,
        one_token_s=statistics.median(found["one_token_s"]) if "one_token_s" in found else None,
        peak_bytes=found["peak_bytes"],
        cache_bytes=None if cache is None else (cache[0], cache[1]),
    )
