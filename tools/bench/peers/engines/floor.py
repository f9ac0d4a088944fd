"""The floor as an engine: the products of a job's encoder and steps, alone, and no tokens.

Of the encoder with the two products of each attention, and without a speech model's convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

PACKAGES = ("onnxruntime",)
IMPORTS = ("tightbeam.deploy",)
CHUNK = 4
"""Samples that the encoder's products take at once, at most."""


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    from tightbeam.deploy import Bundle
    from tools.bench.floor import Floor

    bundle = Bundle.load(folder, verify=False)
    sizes = bundle.manifest.sizes
    encoder = Floor(bundle, bundle.manifest.encoder, threads, precision, attention=True)
    decoder = Floor(bundle, bundle.manifest.decoder, threads, precision)

    @cache
    def encode(samples: int, source: int) -> Callable[[], None]:
        return encoder.at(samples * source, (samples, sizes.H, source, sizes.K))

    step = cache(decoder.at)

    def prepare(samples: Any) -> Any:
        return len(samples), sizes.max_source if speech else max(map(len, samples))

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        count, source = batch
        for start in range(0, count, CHUNK):
            encode(min(CHUNK, count - start), source)()
        for _ in range(job["settings"]["max_new_tokens"]):
            step(count * job["settings"]["num_beams"])()
        return []

    return prepare, generate


def load_recordings(folder: str, precision: str, threads: int) -> tuple[Any, Any]:
    from tools.bench.peers.worker import WINDOW_SAMPLES

    prepare, generate = load(folder, precision, True, threads)

    def features(samples: Any) -> None:
        pass

    def transcribe(samples: Any, job: dict[str, Any]) -> Any:
        return generate(prepare(samples.reshape(-1, WINDOW_SAMPLES)), job)

    return features, transcribe
