"""One engine in a process of its own: conversion of a checkpoint, or jobs as lines of JSON with results sent back so.

    python -I tools/bench/peers/worker.py convert ctranslate2 export/demo build/bench/demo-ctranslate2-int8 int8 text
    python -I tools/bench/peers/worker.py run ctranslate2 build/bench/demo-ctranslate2-int8 int8 text 2

A job is a list of batches and the settings of ``model.generate``; a result holds the best sequence of each sample
without its prompt and padding, the seconds of wall clock and of processor, and the process's memory. Nothing but the
engine is imported, so that its memory is the engine's.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

FRAMES = 3000
"""Columns of a window of Whisper's features."""
RATE_HZ, WINDOW_SAMPLES = 16_000, 480_000
SILENCE = 4_000
"""Samples at the ends of a window, so that no frame sees those of the next one."""


def new_tokens(row: list[int], prompt: list[int], eos: list[int]) -> list[int]:
    """The tokens after the prompt, which an engine may leave out, and before the first end token."""
    tokens = row[len(prompt) :] if row[: len(prompt)] == prompt else row
    return tokens[: next((place for place, token in enumerate(tokens) if token in eos), None)]


def given(samples: Any, make: Any) -> Any:
    """The inputs of a batch: the content of a numpy file if the batch is its name, else what ``make`` makes."""
    if not isinstance(samples, str):
        return make(samples)
    import numpy as np

    return np.load(samples)


def features(samples: list[int], mels: int) -> Any:
    """Random features float32 [B, mels, frames], each made from the sample's number."""
    import numpy as np

    return np.stack([np.random.default_rng(s).uniform(-1, 1, (mels, FRAMES)).astype(np.float32) for s in samples])


def recording(samples: list[int]) -> Any:
    """A recording float32 [480,000 B] of a window for each sample: noise that comes and goes, made from its number.

    All windows have the same loudest tone, so that a spectrogram of one window is cut off at the level of all windows'.
    """
    import numpy as np

    seconds = np.arange(WINDOW_SAMPLES) / RATE_HZ
    tone = 0.5 * np.sin(2 * np.pi * 440 * seconds) * (np.abs(seconds - 1) < 0.5)
    windows = np.empty((len(samples), WINDOW_SAMPLES), np.float32)
    for window, sample in zip(windows, samples, strict=True):
        random = np.random.default_rng(sample)
        loudness = np.repeat(random.uniform(0, 0.05, 300), WINDOW_SAMPLES // 300)
        window[:] = tone + loudness * random.standard_normal(WINDOW_SAMPLES)
    windows[:, :SILENCE] = windows[:, -SILENCE:] = 0
    return windows.reshape(-1)


def memory_mb() -> dict[str, float]:
    """Resident memory of this process, now and at its peak. The peak of ``ru_maxrss`` would be that before exec."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(status[field].split()[0]) / 1000 for name, field in (("now", "VmRSS"), ("peak", "VmHWM"))}


def load(module: Any, folder: str, precision: str, task: str, threads: int) -> tuple[Any, Any]:
    """Load the engine; returns how to prepare the samples of a job, and how to generate for them."""
    if task != "recording":
        prepare, generate = module.load(folder, precision, task == "speech", threads)

        def ids_or_features(samples: Any, job: dict[str, Any]) -> Any:
            mels = job["mels"]
            return prepare(given(samples, lambda numbers: features(numbers, mels) if mels else numbers))

        return ids_or_features, generate
    log_mel, transcribe = module.load_recordings(folder, precision, threads)

    def generate_or_extract(samples: Any, job: dict[str, Any]) -> Any:
        if job["settings"]["max_new_tokens"]:
            return transcribe(samples, job)
        log_mel(samples)
        return []

    return lambda samples, job: given(samples, recording), generate_or_extract


def run(module: Any, folder: str, precision: str, task: str, threads: int) -> None:
    """Load the engine, then run the jobs of standard input. A recording without new tokens is its features alone."""
    results = sys.stdout
    sys.stdout = sys.stderr  # a result is not mixed with what a library prints

    def send(result: dict[str, Any]) -> None:
        print(json.dumps(result), file=results, flush=True)

    for name in module.IMPORTS:
        importlib.import_module(name)
    start = time.perf_counter()
    prepare, generate = load(module, folder, precision, task, threads)
    seconds = time.perf_counter() - start
    versions = {package: version(package) for package in module.PACKAGES}
    send({"versions": versions, "seconds": seconds, "memory_mb": memory_mb()})
    for line in sys.stdin:
        job = json.loads(line)
        batches = [prepare(samples, job) for samples in job["batches"]]
        wall, processor = time.perf_counter(), time.process_time()
        found = [row for batch in batches for row in generate(batch, job)]
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        tokens = [new_tokens(row, job["prompt"], job["eos"]) for row in found]
        send({"tokens": tokens, "seconds": wall, "processor_seconds": processor, "memory_mb": memory_mb()})


def main(action: str, engine: str, source: str, *rest: str) -> None:
    """Do what the command line says."""
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # last, so that an environment's packages come first
    module = importlib.import_module(f"tools.bench.peers.engines.{engine}")
    if action == "convert":
        folder, precision, task = rest
        module.convert(source, folder, precision, task != "text")
    else:
        precision, task, threads = rest
        run(module, source, precision, task, int(threads))


if __name__ == "__main__":
    main(*sys.argv[1:])
