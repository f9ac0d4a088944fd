"""The line that ends a run of `run-model`: inputs, tokens, seconds, rates and peak memory."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tightbeam.deploy.console import counted
from tightbeam.deploy.generation.resolve import DEFAULT_NEW_TOKENS
from tightbeam.deploy.inputs.result import InputResult

__all__ = ["RunSummary", "peak_memory_bytes"]


@dataclass
class RunSummary:
    """Counts of a run, timed from the moment that it is made.

    Attributes
    ----------
    unit : str
        The word for one input: "line", "file" or "document".
    load_seconds : float
        Seconds that loading the model took.
    inputs : int
        Inputs that were run without an error.
    failed : int
        Inputs with an error.
    tokens : int
        Tokens generated for all inputs, in all returned sequences, without start token and prompt.
    audio_seconds : float
        Seconds of audio that were transcribed.
    by_default_length : bool
        True if an output ended at the length limit that counts if nobody sets one.
    """

    unit: str
    load_seconds: float
    inputs: int = 0
    failed: int = 0
    tokens: int = 0
    audio_seconds: float = 0.0
    by_default_length: bool = False
    started: float = field(default_factory=time.perf_counter)

    def add(self, result: InputResult) -> None:
        """Count an input and its tokens."""
        self.inputs += result.error is None
        self.failed += result.error is not None
        self.tokens += result.new_tokens
        self.by_default_length |= result.by_default_length

    @property
    def seconds(self) -> float:
        """Seconds up to the present moment."""
        return max(time.perf_counter() - self.started, 1e-9)

    def rates(self) -> str:
        """Return inputs and tokens a second, up to the present moment."""
        seconds = self.seconds
        rates = f"{_number(self.inputs / seconds)} {self.unit}s/s, {_number(self.tokens / seconds)} tokens/s"
        return f"{rates}, real-time factor {seconds / self.audio_seconds:.2g}" if self.audio_seconds else rates

    def counts(self) -> str:
        """Return inputs, tokens and seconds, up to the present moment."""
        counted_inputs, tokens = counted(self.inputs, self.unit), counted(self.tokens, "token")
        audio = f", {_number(self.audio_seconds)} s of sound" if self.audio_seconds else ""
        return f"{counted_inputs}, {tokens}{audio} in {_number(self.seconds)} s: {self.rates()}"

    def notes(self) -> list[str]:
        """Return the notes about all inputs together."""
        if not self.by_default_length:
            return []
        limit = f"{DEFAULT_NEW_TOKENS} new tokens, the default length; pass --max-new-tokens for longer ones"
        return [f"outputs ended at {limit}"]

    def text(self) -> str:
        """Return the summary in one line, up to the present moment."""
        peak = peak_memory_bytes()
        memory = f"; {peak / 1e6:,.0f} MB at most" if peak else ""
        return f"{self.counts()}{memory}; model loaded in {_number(self.load_seconds)} s"


def peak_memory_bytes() -> int:
    """Return the largest resident memory of this process so far; 0 if the system does not report it."""
    try:  # Linux: ru_maxrss may count the process that started this one
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _number(value: float) -> str:
    """Write a number with two or three significant digits: 0.36, 2.4, 234, 1,234."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"
