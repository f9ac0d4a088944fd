"""The metrics of a model as Triton reports them, in addition to its own (queue, requests, failures)."""

from __future__ import annotations

from typing import Any

from tightbeam.deploy.serving.dispatch.metrics import COUNTERS, GAUGES, Metrics

__all__ = ["triton_metrics"]


def triton_metrics(triton: Any, labels: dict[str, str], max_batch_size: int) -> Metrics:
    """Register the metrics of one model.

    Parameters
    ----------
    triton
        The module ``triton_python_backend_utils``.
    labels
        Labels of every metric.
    max_batch_size
        The largest batch that Triton makes.
    """
    made = {}
    for kind, names in ((triton.MetricFamily.COUNTER, COUNTERS), (triton.MetricFamily.GAUGE, GAUGES)):
        for name, text in names.items():
            family = triton.MetricFamily(name=name, description=text, kind=kind)
            made[name] = family, family.Metric(labels=labels)  # Triton drops the metrics of a family that is freed
    counters = {name: _Held(*made[name]).increment for name in COUNTERS}
    return Metrics(counters, {name: _Held(*made[name]).set for name in GAUGES}, max_batch_size)


class _Held:
    """A metric that holds its family."""

    def __init__(self, family: Any, metric: Any) -> None:
        self._family, self._metric = family, metric

    def increment(self, amount: float) -> None:
        self._metric.increment(amount)

    def set(self, value: float) -> None:
        self._metric.set(value)
