"""Time and memory of checkpoints beside other engines, as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from tightbeam.export.choice import DEFAULT
from tools.bench.pictures import draw_peers
from tools.real_check.check import Report
from tools.real_check.speed import ALONE, TOGETHER, Speed

__all__ = ["picture"]

TITLES = {ALONE: "100 tokens, greedy, alone", TOGETHER: "100 tokens, 4 beams, 8 together"}


def picture(reports: Sequence[Report]) -> Figure:
    """Draw seconds for 100 tokens and peak memory of the default variant and of other engines, for each job."""
    jobs = []
    for report in reports:
        for job, title in TITLES.items():
            shown = [
                speed
                for speed in report.speeds.values()
                if speed.variant in ("", DEFAULT) and speed.precision != "float16"
            ]
            engines = [_bar(speed, job) for speed in shown if speed.usage is not None and job in speed.tokens_per_s]
            if engines:
                jobs.append(
                    {
                        "title": title,
                        "model": report.name,
                        "weights": f"{report.parameters / 1e6:.1f} million parameters",
                        "engines": engines,
                    }
                )
    return draw_peers(jobs)


def _bar(speed: Speed, job: str) -> dict[str, Any]:
    assert speed.usage is not None
    return {
        "name": speed.program,
        "precision": speed.precision or "float32",
        "seconds": 100 / speed.tokens_per_s[job],
        "peak_mb": round(speed.usage.peak),
    }
