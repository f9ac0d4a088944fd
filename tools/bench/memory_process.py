"""A process that loads a bundle and generates once, for `tools.bench.memory`, which reads its memory from outside."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from tightbeam.deploy import Runner

NOISE_SAMPLES = 80_000
"""5 s at the rate of almost all speech models, 16 kHz."""


def main(folder: str, recording: str, threads: int, beams: int, new_tokens: int, source: int) -> None:
    """Load, generate, send the times as a line of JSON, and wait until standard input ends."""
    start = time.monotonic()
    runner = Runner.load(folder, threads=threads or None)
    loaded = time.monotonic()
    settings: dict[str, Any] = {"num_beams": beams, "max_new_tokens": new_tokens}
    random = np.random.default_rng(0)
    if runner.reads_images:
        runner.read_images([random.integers(0, 256, (224, 224, 3), dtype=np.uint8)], **settings)
    elif recording:
        runner.transcribe([recording], num_beams=beams)
    elif runner.is_speech:
        runner.transcribe([random.uniform(-0.1, 0.1, NOISE_SAMPLES).astype(np.float32)], **settings)
    else:
        ids = random.integers(0, runner.manifest.sizes.source_vocabulary, (1, source))
        runner.generate(ids, np.ones_like(ids), min_new_tokens=new_tokens, **settings)
    times = {"load_s": loaded - start, "first_result_s": time.monotonic() - loaded}
    print(json.dumps({**times, "cache_bytes": runner.cache_bytes}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    bundle, sound, *numbers = sys.argv[1:]
    main(bundle, sound, *map(int, numbers))
