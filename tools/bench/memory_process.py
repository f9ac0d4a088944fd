"""A process that loads a bundle and generates once, for `tools.bench.memory`, which reads its memory from outside."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

NOISE_SAMPLES = 80_000
"""5 s at the rate of almost all speech models, 16 kHz."""


def send(**values: Any) -> None:
    """Send a line of JSON, and wait until the reader lets this process go on."""
    print(json.dumps(values), flush=True)
    sys.stdin.readline()


def main(folder: str, recording: str, threads: int, beams: int, new_tokens: int, source: int) -> None:
    """Import, load and generate, and send a line after each."""
    import numpy as np

    from tightbeam.deploy import Runner

    sys.stdin.readline()
    send(now=time.monotonic())
    start = time.monotonic()
    runner = Runner.load(folder, threads=threads or None)
    send(seconds=time.monotonic() - start)
    settings: dict[str, Any] = {"num_beams": beams, "max_new_tokens": new_tokens}
    random = np.random.default_rng(0)
    start = time.monotonic()
    if runner.reads_images:
        runner.read_images([random.integers(0, 256, (224, 224, 3), dtype=np.uint8)], **settings)
    elif recording:
        runner.transcribe([recording], num_beams=beams)
    elif runner.is_speech:
        runner.transcribe([random.uniform(-0.1, 0.1, NOISE_SAMPLES).astype(np.float32)], **settings)
    else:
        ids = random.integers(0, runner.manifest.sizes.source_vocabulary, (1, source))
        runner.generate(ids, np.ones_like(ids), min_new_tokens=new_tokens, **settings)
    send(seconds=time.monotonic() - start, cache_bytes=runner.cache_bytes)


if __name__ == "__main__":
    bundle, sound, *numbers = sys.argv[1:]
    main(bundle, sound, *map(int, numbers))
