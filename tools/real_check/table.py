"""The report of checkpoints as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from os import cpu_count

from tightbeam.deploy.console import counted
from tightbeam.export.choice import DEFAULT
from tools.bench.peers.table import processor
from tools.real_check.check import Report
from tools.real_check.exports import Quality, Result
from tools.real_check.outcome import WINDOWED, Counts
from tools.real_check.speed import ALONE, OURS, REFERENCE, TOGETHER, Speed
from tools.real_check.task import BEAMS

__all__ = ["as_markdown"]

ENGINES = (
    *("engine", f"{ALONE}, tokens/s", f"{TOGETHER}, tokens/s", "load, s (from start)", "peak MB"),
    *("steady MB: anonymous, file-backed", "equal to transformers", "words wrong"),
)
FORMS = (
    *(
        "variant",
        "precision",
        "export, s",
        "on disk, MB (weights)",
        "caches, MB",
        "equal to torch",
        "words wrong",
        "perplexity",
    ),
    "divergence, nats (log-probabilities off by)",
    *(f"{TOGETHER}, x", "peak MB", "what the guards found"),
)


def as_markdown(reports: Sequence[Report], missing: Sequence[str]) -> str:
    """Make the tables of all checkpoints, and a line about what they were measured with.

    Parameters
    ----------
    reports
        Those of the checkpoints, in their order.
    missing
        Environments of engines that are not installed.
    """
    parts = [line for report in reports for line in _section(report)]
    parts.append(f"{date.today().isoformat()}, {processor()}, {cpu_count()} cores.")
    if missing:
        parts.append(f"Not installed, and so left out: {', '.join(missing)} (`python -m tools.bench.peers install`).")
    return "\n\n".join(parts) + "\n"


def _section(report: Report) -> Iterator[str]:
    yield f"## {report.name}"
    if report.error:
        yield f"It could not be tried: {report.error}"
        return
    yield (
        f"{report.family}, {report.parameters / 1e6:.1f} million parameters, {report.rows} inputs, "
        f"{counted(report.threads, 'thread')}. Words wrong by transformers: "
        f"{_words(report.torch, report.rows) or 'not counted'}{_perplexity(report.torch, '; perplexity ')}."
    )
    if report.speeds:
        yield _table(ENGINES, _engine_rows(report))
    yield _table(FORMS, (_form_row(report, result) for result in report.results))


def _table(headings: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([f"| {' | '.join(headings)} |", "|---" * len(headings) + "|", *lines])


def _engine_rows(report: Report) -> Iterator[Sequence[str]]:
    reference = report.speeds[REFERENCE]
    for name, speed in report.speeds.items():
        if speed.variant not in ("", DEFAULT):
            continue
        shown = f"**{name}**" if speed.program == OURS else name
        if speed.error:
            yield (shown, speed.error, *[""] * (len(ENGINES) - 2))
            continue
        rates = [_rate(speed, reference, job) for job in (ALONE, TOGETHER)]
        equal = ", ".join(f"{speed.equal[job]} of {speed.compared[job]}" for job in speed.tokens_per_s)
        usage = speed.usage
        memory = (f"{usage.peak:.0f}", f"{usage.anonymous:.0f}, {usage.file_backed:.0f}") if usage else ("", "")
        words = "" if speed.word_errors is None else f"{speed.word_errors:.1%}"
        load = f"{speed.load_s:.2f} ({speed.start_s:.1f})"
        same = "" if name == REFERENCE else equal
        yield shown, *rates, load, *memory, same, words


def _rate(speed: Speed, reference: Speed, job: str) -> str:
    if job not in speed.tokens_per_s:
        return ""
    rate, base = speed.tokens_per_s[job], reference.tokens_per_s.get(job)
    return f"{rate:,.0f}" + (f" ({rate / base:.2f} x)" if base and speed is not reference else "")


def _form_row(report: Report, result: Result) -> Sequence[str]:
    form = result.form
    if result.error:
        return form.variant, form.precision_label, f"{result.seconds:.0f}", *[""] * (len(FORMS) - 4), result.error
    quality, speed = result.quality, report.speed_of(form)
    base = report.speeds[REFERENCE].tokens_per_s.get(TOGETHER) if speed else None
    rate = speed.tokens_per_s.get(TOGETHER) if speed else None
    return (
        form.variant,
        form.precision_label,
        f"{result.seconds:.0f}",
        f"{result.disk_mb:.1f}{_share_of_weights(report, result)}",
        f"{result.cache_mb:.1f}",
        ", ".join(f"{name} {_count(counts)}" for name, counts in result.counts.items()),
        _words(quality, report.rows),
        _perplexity(quality),
        "" if result.divergence is None else f"{result.divergence:.2g} ({result.distance:.1%})",
        f"{rate / base:.2f}" if rate and base else "",
        f"{speed.usage.peak:.0f}" if speed and speed.usage else "",
        result.found,
    )


def _share_of_weights(report: Report, result: Result) -> str:
    """The bytes of the weights as a multiple of float32's, if the same variant was exported in float32."""
    exact = (each for each in report.results if each.form.is_exact and each.form.variant == result.form.variant)
    base = next((each.weights_mb for each in exact), 0)
    return f" ({result.weights_mb / base:.2f} x)" if base and not result.form.is_exact else ""


def _words(quality: Quality | None, rows: int) -> str:
    """Words wrong with beams and in whole recordings, and languages found."""
    if quality is None or not quality.word_errors:
        return ""
    said = f"{quality.word_errors[BEAMS]:.1%}"
    said += f", {WINDOWED} {quality.word_errors[WINDOWED]:.1%}" if WINDOWED in quality.word_errors else ""
    return said + (f", {quality.languages} of {rows} languages" if quality.languages is not None else "")


def _perplexity(quality: Quality | None, before: str = "") -> str:
    return "" if quality is None or quality.perplexity is None else f"{before}{quality.perplexity:.4g}"


def _count(counts: Counts) -> str:
    ties = f" and {counts.ties} ties" if counts.ties else ""
    return f"{counts.equal} of {counts.all}{ties}"
