"""Batches of a loaded bundle: whole ones, searched to their end, and schedulers of samples that come and go."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.model_inputs import ModelInputs
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.scheduling.events import SchedulerEvents
from tightbeam.deploy.scheduling.results import join_results
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import Scheduler
from tightbeam.deploy.search import SearchCallback, SearchResult
from tightbeam.deploy.search.callbacks import check_callback
from tightbeam.deploy.text.tokenizer import TextCodec

__all__ = ["Batches", "check_batch_size", "check_texts_alone"]


class Batches(ModelInputs):
    """A loaded bundle that runs batches, one at a time.

    Parameters
    ----------
    bundle, runtime, codec
        Those of `ModelSettings`.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, codec: TextCodec | None) -> None:
        super().__init__(bundle, runtime, codec)
        self._lock = threading.Lock()  # held while the runtime is in use
        self.cache_bytes = (0, 0)

    def _generate(self, samples: Sequence[Sample], callback: SearchCallback | None) -> SearchResult:
        """Run samples of the same settings together, and join their results."""
        check_callback(callback)
        events = None if callback is None else _CallbackEvents(callback)
        max_rows = len(samples) * samples[0].options.num_beams
        scheduler = Scheduler(self._runtime, max_rows, self._lock, events, retry=callback is None)
        found = scheduler.run(samples)
        self.cache_bytes = scheduler.cache_bytes
        return join_results(samples, found)

    def scheduler(self, max_rows: int, events: SchedulerEvents | None = None) -> Scheduler:
        """Return a scheduler without samples, for samples of any settings that come and go one by one.

        Parameters
        ----------
        max_rows : int
            The most rows (samples x beams) that take steps.
        events : SchedulerEvents, optional
            Receives what happens to samples, and may cancel them.

        Returns
        -------
        Scheduler
            It is for one thread. Other calls of this runner run between its turns.
        """
        return Scheduler(self._runtime, max_rows, self._lock, events)


class _CallbackEvents:
    """The `SchedulerEvents` that pass on those of a `SearchCallback`."""

    def __init__(self, callback: SearchCallback) -> None:
        self.on_step, self.on_finished = callback.on_step, callback.on_finished

    def on_started(self, samples: Sequence[int]) -> None: ...


def check_batch_size(batch_size: Any, of: str) -> None:
    if not (_is_integer(batch_size) and batch_size >= 1):
        raise InputError(f"batch_size={batch_size!r} is not a number of {of}; pass 1 or more")


def check_texts_alone(options: GenerationOptions) -> None:
    """Raise GenerationError for settings that ask for more than texts."""
    if options.scoring is not None:
        asked = options.scoring.asked
        fix = "Runner.transcribe_segments" if options.aligned else "Runner.generate_outputs or Runner.generate"
        raise GenerationError(f"{asked} is more than texts; call {fix}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
