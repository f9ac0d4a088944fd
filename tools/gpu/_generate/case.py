"""One way to generate, at one batch size: seconds in total and by part, and memory. A process of `generate.py`.

The request: ``side`` (a key of ``PEERS``, else a variant of ours), ``model`` (checkpoint or bundle folder), ``device``,
``precision``, ``job`` (``GenerationJob``), ``rounds`` and ``seconds``: rounds that are timed after a warm-up,
fewer where they take longer than that. ``tokens``: file for what was generated.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.text.tokenizer import TextCodec
from tools.bench.timed_runtime import TimedRuntime
from tools.gpu._generate.device import Device, device_of, peak_of
from tools.gpu._generate.process import serve_case

__all__ = ["PEERS", "GenerationJob", "source_ids"]


@dataclass(frozen=True)
class GenerationJob:
    """Sizes of a run: samples, source positions, generated tokens, beams, and the n-gram that must not repeat.
    ``vocabulary``: source ids are below it.
    """

    batch: int
    source: int
    new_tokens: int
    beams: int
    ngram: int
    vocabulary: int

    def settings(self) -> dict[str, Any]:
        """Arguments of ``generate``, ours and that of transformers."""
        return {
            **{"num_beams": self.beams, "no_repeat_ngram_size": self.ngram},
            **{"min_new_tokens": self.new_tokens, "max_new_tokens": self.new_tokens},
        }


def source_ids(job: GenerationJob) -> Array:
    """Random ids [B, N]; a smaller batch is a prefix of a larger one."""
    return np.random.default_rng(0).integers(5, job.vocabulary, (job.batch, job.source))


class Side(Protocol):
    """One way to generate. ``generate`` returns tokens [B, T]; ``parts``, after it, shares of time and memory."""

    def generate(self) -> Array: ...

    def parts(self) -> dict[str, Any]: ...


class TimedRunner(Runner):
    """A runner that records the times of its runtime."""

    def __init__(self, bundle: Bundle, runtime: Runtime, codec: TextCodec | None) -> None:
        self.timed = TimedRuntime(runtime)
        super().__init__(bundle, self.timed, codec)


class Ours:
    """Generation by a bundle."""

    def __init__(self, request: Mapping[str, Any], job: GenerationJob, device: Device) -> None:
        runner = TimedRunner.load(request["model"], device=request["device"], verify=False)
        assert isinstance(runner, TimedRunner)
        self._runner = runner
        runner.timed.synchronize = device.synchronize
        self._ids, self._settings = source_ids(job), job.settings()

    def generate(self) -> Array:
        return self._runner.generate(self._ids, **self._settings).sequences

    def parts(self) -> dict[str, Any]:
        timed = self._runner.timed
        return {
            "encoder_s": timed.encoder_s,
            "step_s": statistics.median(timed.step_s),
            "steps_s": sum(timed.step_s),
            "cache_bytes": list(self._runner.cache_bytes),
        }


class Transformers:
    """Generation by transformers; ``settings`` and ``compiled`` choose the variant of it."""

    settings: Mapping[str, Any] = {}
    compiled = False

    def __init__(self, request: Mapping[str, Any], job: GenerationJob, device: Device) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._torch, self._device = torch, device
        self._on_gpu = request["device"] == "cuda"
        dtype = {"fp16": torch.float16, "fp32": torch.float32}[request["precision"]]
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(request["model"], dtype=dtype, attn_implementation="sdpa")
        self._model = model.eval().to(request["device"])
        if self.compiled:
            backend = "inductor" if self._on_gpu else "eager"  # a rehearsal need not wait for a compiler
            self._model.forward = torch.compile(self._model.forward, backend=backend)
        self._ids = torch.from_numpy(source_ids(job)).to(request["device"])
        self._mask = torch.ones_like(self._ids)
        self._settings = {**job.settings(), **self.settings, "max_length": None}

    def generate(self) -> Array:
        with self._torch.no_grad():
            tokens = self._model.generate(self._ids, attention_mask=self._mask, **self._settings)
        return np.asarray(tokens.cpu())

    def parts(self) -> dict[str, Any]:
        """Seconds of the encoder, and torch's peak memory, which counts tensors without its allocator's reserve."""
        own = {"peak_bytes_torch": self._torch.cuda.max_memory_allocated()} if self._on_gpu else {}
        return {"encoder_s": statistics.median(_seconds(self._encode, self._device) for _ in range(3)), **own}

    def _encode(self) -> None:
        with self._torch.no_grad():
            self._model.get_encoder()(self._ids, attention_mask=self._mask)


class TransformersCompiled(Transformers):
    """Generation with torch.compile; beams compile nothing by themselves, so the forward of a step is compiled here."""

    settings: Mapping[str, Any] = {"cache_implementation": "static"}
    compiled = True


class TransformersNoCache(Transformers):
    settings: Mapping[str, Any] = {"use_cache": False}


PEERS: Mapping[str, type[Transformers]] = {
    "transformers": Transformers,
    "transformers compiled": TransformersCompiled,
    "transformers no cache": TransformersNoCache,
}


def _seconds(work: Callable[[], object], device: Device) -> float:
    device.synchronize()
    start = time.perf_counter()
    work()
    device.synchronize()
    return time.perf_counter() - start


class LoggedWarnings(logging.Handler):
    """Log handler that collects distinct warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self.lines:
            self.lines.append(line)


def measure(request: Mapping[str, Any], report: Callable[[Mapping[str, Any]], None]) -> None:
    """Report ``first_s`` (without loading), ``seconds``, ``peak_bytes``, ``repeatable``, ``warnings`` of our runtime,
    and the side's ``parts``.
    """
    warnings = LoggedWarnings()
    logging.getLogger("tightbeam").addHandler(warnings)
    device = device_of(request["device"])
    job = GenerationJob(**request["job"])
    times: list[float] = []
    with peak_of(device) as peak:
        make: Any = PEERS.get(request["side"], Ours)
        side: Side = make(request, job, device)
        found: list[Array] = []
        report({"first_s": _seconds(lambda: found.append(side.generate()), device)})
        np.save(Path(request["tokens"]), found[0])
        while len(times) < request["rounds"] and (not times or sum(times) < request["seconds"]):
            times.append(_seconds(lambda: found.append(side.generate()), device))
    repeatable = all(np.array_equal(tokens, found[0]) for tokens in found)
    report({"seconds": times, "peak_bytes": peak.bytes, "repeatable": repeatable, "warnings": warnings.lines})
    report(side.parts())


if __name__ == "__main__":
    serve_case(measure)
