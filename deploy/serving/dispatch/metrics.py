"""The metrics of a served model for Prometheus, whichever front has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tightbeam.deploy.serving.dispatch.responder import Outcome
from tightbeam.deploy.serving.protocol.messages import Stats

__all__ = ["COUNTERS", "GAUGES", "Metrics"]

COUNTERS = {
    "tightbeam_tokens_total": "Tokens in the sequences returned",
    "tightbeam_prefills_total": "Runs of the encoder, or over prompts",
    "tightbeam_samples_total": "Samples in them",
    "tightbeam_steps_total": "Decoder steps",
    "tightbeam_sample_steps_total": "Samples in the steps; by tightbeam_steps_total, the batch fill",
    "tightbeam_prefill_seconds_total": "Seconds in the encoder, or over prompts",
    "tightbeam_step_seconds_total": "Seconds in decoder steps",
    "tightbeam_refused_total": "Requests that cannot be run: invalid, or with unsupported settings",
    "tightbeam_failed_total": "Valid requests that failed: an error of the model or the server",
    "tightbeam_cancelled_total": "Requests that were cancelled before their end",
    "tightbeam_restarts_total": "Times that the process which generates ended and was started again",
}
GAUGES = {
    "tightbeam_tokens_per_second": "Tokens in the sequences returned, by second of work, when sequences ended last",
    "tightbeam_batch_fill": "Samples in a step, by the largest batch that a request may have, when the model ran last",
}

REPORTED: tuple[Outcome, ...] = ("refused", "failed", "cancelled")
"""Outcomes that have a counter."""


class Metrics:
    """The metrics of one model.

    Parameters
    ----------
    counters
        For each of `COUNTERS` the function that adds an amount to it.
    gauges
        For each of `GAUGES` the function that sets it.
    max_batch_size
        The most rows of a request.
    """

    def __init__(
        self,
        counters: Mapping[str, Callable[[float], object]],
        gauges: Mapping[str, Callable[[float], object]],
        max_batch_size: int,
    ) -> None:
        self._counters, self._gauges, self._largest = counters, gauges, max_batch_size
        self._seconds = 0.0  # of work since sequences ended

    def add(self, stats: Stats, outcomes: Mapping[Outcome, int], restarts: int) -> None:
        """Add work, the number of requests of each outcome, and restarts of the worker."""
        for name, amount in vars(stats).items():
            self._count(name, amount)
        for outcome in REPORTED:
            self._count(outcome, outcomes.get(outcome, 0))
        self._count("restarts", restarts)
        self._seconds += stats.prefill_seconds + stats.step_seconds
        if stats.tokens and self._seconds:
            self._gauges["tightbeam_tokens_per_second"](stats.tokens / self._seconds)
            self._seconds = 0.0
        if stats.steps:
            self._gauges["tightbeam_batch_fill"](stats.sample_steps / stats.steps / self._largest)

    def _count(self, name: str, amount: float) -> None:
        if amount:  # behind Triton each increment is a message to the server
            self._counters[f"tightbeam_{name}_total"](amount)
