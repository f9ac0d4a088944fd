"""A runtime that records the seconds of its encoder and of each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tightbeam.deploy.runtimes.base import Decoding, Runtime, StepOutputs

__all__ = ["TimedRuntime"]


class TimedRuntime:
    """A wrapped runtime. ``encoder_s`` and ``step_s``: seconds of the latest batch; ``synchronize``: waits for the
    device after the encoder.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.synchronize: Callable[[], None] = lambda: None
        self.encoder_s = 0.0
        self.step_s: list[float] = []

    @property
    def logits_obstacle(self) -> str:
        return self._runtime.logits_obstacle

    @property
    def trie_obstacle(self) -> str:
        return self._runtime.trie_obstacle

    @property
    def groups_obstacle(self) -> str:
        return self._runtime.groups_obstacle

    @property
    def alignment_obstacle(self) -> str:
        return self._runtime.alignment_obstacle

    def joining(self) -> None:
        """Whole batches alone are timed."""
        return None

    def begin(self, *arguments: Any, **named: Any) -> Decoding:
        start = time.perf_counter()
        decoding = self._runtime.begin(*arguments, **named)
        self.synchronize()
        self.encoder_s, self.step_s = time.perf_counter() - start, []
        step = decoding.step

        def timed() -> StepOutputs:
            start = time.perf_counter()
            outputs = step()
            self.step_s.append(time.perf_counter() - start)
            return outputs

        decoding.step = timed  # type: ignore[method-assign]
        return decoding
