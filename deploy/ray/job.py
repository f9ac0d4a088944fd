"""A run over a cluster: partitions go to actors through a Ray dataset, and their reports come back in order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tightbeam.deploy.errors import RuntimeSetupError, first_line
from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.ray.partition import Partition
from tightbeam.deploy.ray.sizing import Actors
from tightbeam.deploy.ray.worker import Job, PartitionReport, PartitionWorker

__all__ = ["ClusterRun", "StartCounter"]

MOST_TASKS = 10_000
"""The most tasks of a dataset; with more partitions, a task has several."""


class StartCounter:
    """Actor that counts the starts of each partition, and records the time of the first start."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}
        self._first: float | None = None

    def start(self, index: int) -> int:
        """Count a start, and return the number of starts so far."""
        self._first = self._first or time.time()
        self._starts[index] = self._starts.get(index, 0) + 1
        return self._starts[index]

    def first(self) -> float | None:
        """Return the time of the first start, in seconds since 1970; None before it."""
        return self._first


class ClusterRun:
    """Partitions that run on the actors of a cluster.

    Parameters
    ----------
    ray
        The library, connected.
    job : Job
    actors : Actors
    ordered : bool
        Return reports in the order of the partitions, rather than in the order in which they end.
    """

    def __init__(self, ray: Any, job: Job, actors: Actors, *, ordered: bool) -> None:
        self._ray, self._job, self._actors, self._ordered = ray, job, actors, ordered
        strategies = optional_library("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._starts = ray.remote(StartCounter).options(num_cpus=0, scheduling_strategy=here).remote()

    def reports(self, partitions: Sequence[Partition]) -> Iterator[PartitionReport]:
        """Run partitions, and yield a report for each. An actor that is lost is started again, and so is its work.

        Raises
        ------
        RuntimeSetupError
            Ray failed.
        """
        data = optional_library("ray.data")
        context = data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.execution_options.preserve_order = self._ordered
        rows = [{"partition": partition.to_json()} for partition in partitions]
        dataset = data.from_items(rows, override_num_blocks=min(len(rows), MOST_TASKS)).map_batches(
            PartitionWorker,
            fn_constructor_args=[self._job, self._starts],
            batch_size=1,
            num_cpus=self._actors.cores,
            num_gpus=self._actors.gpus or None,
            # Idle actors end, so that an actor that has lost its machine finds another.
            compute=data.ActorPoolStrategy(
                min_size=1,
                max_size=self._actors.count,
                initial_size=self._actors.count,
                max_tasks_in_flight_per_actor=1,
            ),
            udf_modifying_row_count=False,
        )
        try:
            for row in dataset.iter_rows():
                yield PartitionReport(**json.loads(row["report"]))
        except (self._ray.exceptions.RayError, RuntimeError, ValueError) as error:
            cause = getattr(error, "cause", None) or error.__cause__ or error
            raise RuntimeSetupError(
                f"Ray failed ({first_line(cause)}); every machine needs this version of Tightbeam, and the same paths"
            ) from None

    def started(self) -> float | None:
        """Return the time at which the first partition was begun, in seconds since 1970."""
        found: float | None = self._ray.get(self._starts.first.remote())
        return found
