"""Metrics of a model for Prometheus, beside Triton's own (queue, requests, failures). Rates are taken of counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tightbeam.deploy.serving.messages import Stats
from tightbeam.deploy.serving.responses import Outcome

__all__ = ["COUNTERS", "GAUGES", "Metrics"]

COUNTERS = {
    "tightbeam_tokens_total": "Tokens in the sequences returned",
    "tightbeam_batches_total": "Batches run",
    "tightbeam_samples_total": "Samples in the batches run; by tightbeam_batches_total, the batch fill",
    "tightbeam_steps_total": "Decoder steps",
    "tightbeam_prefill_seconds_total": "Seconds to the end of a batch's first step: the encoder, or prompts",
    "tightbeam_step_seconds_total": "Seconds in the steps after a batch's first",
    "tightbeam_refused_total": "Requests that cannot be run: invalid, or with unsupported settings",
    "tightbeam_failed_total": "Valid requests that failed: an error of the model or the server",
    "tightbeam_cancelled_total": "Requests that were cancelled while they ran",
    "tightbeam_restarts_total": "Times that the process which generates ended and was started again",
}
GAUGES = {
    "tightbeam_tokens_per_second": "Tokens in the sequences returned, by second, when the model ran last",
    "tightbeam_batch_fill": "Samples in a batch, by the largest batch that Triton makes, when the model ran last",
}


class Metrics:
    """The metrics of one model.

    Parameters
    ----------
    triton
        The module ``triton_python_backend_utils``.
    labels
        Labels of every metric.
    max_batch_size
        The largest batch that Triton makes.
    """

    def __init__(self, triton: Any, labels: dict[str, str], max_batch_size: int) -> None:
        self._largest = max(1, max_batch_size)
        kinds = {name: triton.MetricFamily.COUNTER for name in COUNTERS}
        kinds |= {name: triton.MetricFamily.GAUGE for name in GAUGES}
        self._families = {  # kept, since a metric needs its family
            name: triton.MetricFamily(name=name, description=text, kind=kinds[name])
            for name, text in (COUNTERS | GAUGES).items()
        }
        self._metrics = {name: family.Metric(labels=labels) for name, family in self._families.items()}

    def add(self, stats: Stats, outcomes: Sequence[Outcome | None]) -> None:
        """Add the work of one call, and the outcomes of its requests."""
        seconds = stats.prefill_seconds + stats.step_seconds
        self._count("tokens", stats.tokens)
        self._count("batches", stats.batches)
        self._count("samples", stats.samples)
        self._count("steps", stats.steps)
        self._count("prefill_seconds", stats.prefill_seconds)
        self._count("step_seconds", stats.step_seconds)
        for outcome in ("refused", "failed", "cancelled"):
            self._count(outcome, outcomes.count(outcome))
        if seconds:
            self._metrics["tightbeam_tokens_per_second"].set(stats.tokens / seconds)
            self._metrics["tightbeam_batch_fill"].set(stats.samples / stats.batches / self._largest)

    def restarted(self) -> None:
        """Count a restart of the worker."""
        self._count("restarts", 1)

    def _count(self, name: str, amount: float) -> None:
        if amount:  # each increment is a message to the server
            self._metrics[f"tightbeam_{name}_total"].increment(amount)
