"""One way to generate, at one batch size: seconds in total and by part, and memory. A process of `generate.py`.

The request: ``side`` (a key of ``PEERS``, else a variant of ours), ``model`` (checkpoint or bundle folder), ``device``,
``precision``, ``job`` (``GenerationJob``), ``rounds`` and ``seconds``: rounds that are timed after a warm-up,
fewer if they take longer than that. ``tokens``: file for what was generated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy import Runner
from tightbeam.deploy.arrays import Array
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

    def settings(self, new_tokens: int) -> dict[str, Any]:
        """Arguments of ``generate`` for so many tokens, for a bundle and for transformers."""
        return {
            **{"num_beams": self.beams, "no_repeat_ngram_size": self.ngram},
            **{"min_new_tokens": new_tokens, "max_new_tokens": new_tokens},
        }


def source_ids(job: GenerationJob) -> Array:
    """Random ids [B, N]; a smaller batch is a prefix of a larger one."""
    return np.random.default_rng(0).integers(5, job.vocabulary, (job.batch, job.source))


class Side(Protocol):
    """One way to generate. ``generate`` returns tokens [B, T]; ``memory``, after it, what the side knows of its own."""

    def generate(self, new_tokens: int) -> Array: ...

    def memory(self) -> dict[str, Any]: ...


class Ours:
    """Generation by a bundle."""

    def __init__(self, request: Mapping[str, Any], job: GenerationJob) -> None:
        self._runner = Runner.load(request["model"], device=request["device"], verify=False)
        self._ids, self._job = source_ids(job), job

    def generate(self, new_tokens: int) -> Array:
        return self._runner.generate(self._ids, **self._job.settings(new_tokens)).sequences

    def memory(self) -> dict[str, Any]:
        return {"cache_bytes": list(self._runner.cache_bytes)}


class Transformers:
    """Generation by transformers; ``settings`` and ``compiled`` choose the variant of it."""

    settings: Mapping[str, Any] = {}
    compiled = False

    def __init__(self, request: Mapping[str, Any], job: GenerationJob) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._torch, self._job = torch, job
        self._on_gpu = request["device"] == "cuda"
        dtype = {"fp16": torch.float16, "fp32": torch.float32}[request["precision"]]
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(request["model"], dtype=dtype, attn_implementation="sdpa")
        self._model = model.eval().to(request["device"])
        if self.compiled:
            backend = "inductor" if self._on_gpu else "eager"  # a rehearsal need not wait for a compiler
            self._model.forward = torch.compile(self._model.forward, backend=backend)
        self._ids = torch.from_numpy(source_ids(job)).to(request["device"])
        self._mask = torch.ones_like(self._ids)

    def generate(self, new_tokens: int) -> Array:
        settings = {**self._job.settings(new_tokens), **self.settings, "max_length": None}
        with self._torch.no_grad():
            tokens = self._model.generate(self._ids, attention_mask=self._mask, **settings)
        return np.asarray(tokens.cpu())

    def memory(self) -> dict[str, Any]:
        """torch's peak memory, which counts tensors without its allocator's reserve."""
        return {"peak_bytes_torch": self._torch.cuda.max_memory_allocated()} if self._on_gpu else {}


class TransformersCompiled(Transformers):
    """Generation with torch.compile; beams compile nothing by themselves, so the forward of a step is compiled here."""

    settings: Mapping[str, Any] = {"cache_implementation": "static"}
    compiled = True


class TransformersNoCache(Transformers):
    """Generation that computes all positions again in each step."""

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
    what the side's ``memory`` says, and ``one_token_s``: seconds of runs of one token, which are mostly the encoder's.
    """
    warnings = LoggedWarnings()
    logging.getLogger("tightbeam").addHandler(warnings)
    device = device_of(request["device"])
    job = GenerationJob(**request["job"])
    times: list[float] = []
    with peak_of(device) as peak:
        make: Any = PEERS.get(request["side"], Ours)
        side: Side = make(request, job)
        found: list[Array] = []

        def whole() -> None:
            found.append(side.generate(job.new_tokens))

        report({"first_s": _seconds(whole, device)})
        np.save(Path(request["tokens"]), found[0])
        while len(times) < request["rounds"] and (not times or sum(times) < request["seconds"]):
            times.append(_seconds(whole, device))
    repeatable = all(np.array_equal(tokens, found[0]) for tokens in found)
    report({"seconds": times, "peak_bytes": peak.bytes, "repeatable": repeatable, "warnings": warnings.lines})
    report(side.memory())
    if not getattr(side, "compiled", False):  # another length would be compiled anew, which takes minutes
        side.generate(1)
        short: list[float] = []
        while len(short) < request["rounds"] and (not short or sum(short) < request["seconds"] / 10):
            short.append(_seconds(lambda: side.generate(1), device))
        report({"one_token_s": short})


if __name__ == "__main__":
    serve_case(measure)
