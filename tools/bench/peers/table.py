"""The results as a table in Markdown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tools.bench.peers.contenders import CONTENDERS, WHISPERER
from tools.bench.peers.results import Figures, Group, Results

__all__ = ["as_markdown", "processor"]

HEADINGS = ("batch", "engine", "encoder, s", "step, ms", "job, s (least, most)", "samples/s", "peak MB", "equal")
OF_RECORDINGS = ("features, ms", f"x {WHISPERER.replace('_', '-')}")
"""Further headings; the last is how many times as fast as it in the same precision."""


def as_markdown(results: Results) -> str:
    """The tables, one for each shape and number of beams, and what they were measured with."""
    parts = []
    for (shape, source, new_tokens, threads, beams), groups in groupby(results.groups(), key=lambda group: group[:5]):
        length = f"{source} tokens in, " if source else ""
        forced = f"{new_tokens} out" if new_tokens else "its own ends"
        search = f"{beams} beams" if beams > 1 else "greedy"
        parts.append(f"**{shape}**: {length}{forced}, {search}, {threads} threads\n\n{_table(results, list(groups))}")
    return "\n\n".join([*parts, _made_with(results)]) + "\n"


def _table(results: Results, groups: Sequence[Group]) -> str:
    recordings = any(each.features_ms is not None for group in groups for each in results.figures(group))
    headings = (*HEADINGS, *OF_RECORDINGS) if recordings else HEADINGS
    rows = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for group in groups:
        figures = results.figures(group)
        fastest = max((each.samples_per_second for each in figures if not each.is_floor), default=0)
        rows += [_row(group, each, figures, fastest) for each in figures]
    return "\n".join(rows)


def _row(group: Group, mine: Figures, figures: Sequence[Figures], fastest: float) -> str:
    """A row; in brackets how many times as long as the floor of the precision an engine takes."""
    encoder, step = _over_floor(mine, figures, "encoder_s", ".2f"), _over_floor(mine, figures, "step_ms", ".1f")
    rate = f"{mine.samples_per_second:.3g}"
    if mine.is_floor:
        memory = equal = ""
    else:
        memory = f"{mine.peak_mb:,.0f}"
        equal = f"{mine.equal} of {mine.compared}" if mine.equal is not None else ""
        rate = f"**{rate}**" if mine.samples_per_second == fastest else rate
    job = f"{mine.job_s:.2f}" + (f" ({mine.least_s:.2f}, {mine.most_s:.2f})" if mine.rounds > 1 else "")
    cells = [str(group.batch), mine.engine, encoder, step, job, rate, memory, equal]
    if mine.features_ms is not None:
        cells += ["" if mine.is_floor else f"{mine.features_ms:.0f}", _times_as_fast(mine, figures)]
    return f"| {' | '.join(cells)} |"


def _times_as_fast(mine: Figures, figures: Sequence[Figures]) -> str:
    """Factor of speed over faster-whisper in the same precision."""
    pair = (WHISPERER, _precision(mine))
    other = [each for each in figures if (CONTENDERS[each.engine].engine, CONTENDERS[each.engine].precision) == pair]
    return f"{other[0].job_s / mine.job_s:.2f}" if other and not mine.is_floor else ""


def _over_floor(mine: Figures, figures: Sequence[Figures], what: str, digits: str) -> str:
    value = getattr(mine, what)
    if value is None:
        return ""
    precision = _precision(mine)
    floors = [each for each in figures if _is_floor_of(each, precision) and getattr(each, what) > 0]
    if mine.is_floor or not floors:
        return f"{value:{digits}}"
    return f"{value:{digits}} ({value / min(getattr(floor, what) for floor in floors):.2f})"


def _precision(figures: Figures) -> str:
    """The precision of the products."""
    return CONTENDERS[figures.engine].precision.partition("-")[0]


def _is_floor_of(figures: Figures, precision: str) -> bool:
    return figures.is_floor and CONTENDERS[figures.engine].precision.startswith(precision)


def _made_with(results: Results) -> str:
    days = sorted({record.when[:10] for record in results.records()})
    versions: dict[str, str] = {}
    for record in results.records():
        own = ", ".join(f"{name} {number}" for name, number in record.versions.items())
        versions[CONTENDERS[record.engine].engine] = own
    when = " and ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"
    return f"{when}, {processor()}, {os.cpu_count()} cores. Versions: {'; '.join(versions.values())}."


def processor() -> str:
    """The name of this machine's processor, and which of the instructions that int8 uses it has."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []  # on Linux alone
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = found.get("flags", "").split()
    known = [
        flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8") if flag in flags
    ]
    return f"{found.get('model name', 'a processor without a name')} ({', '.join(known)})"
