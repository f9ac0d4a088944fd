"""Section "speech" of gpu_check.py: real-time factors of Whisper's shapes, in float16, beside transformers.

The weights are random, so every window gets the same number of tokens. A real-time factor is seconds of sound that are
transcribed in a second: windows of 30 s, over the time of their encoder and of the search, without the features.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tightbeam.deploy import Runner
from tightbeam.deploy.arrays import Array
from tightbeam.export import export_model
from tools.gpu import _process
from tools.gpu._process import PASSED, Found, read, tried
from tools.make_checkpoint import main as make_checkpoint

SHAPES = ("whisper-base", "whisper-large-v3-turbo")
BATCHES, BEAMS = (1, 16, 128), (1, 5)
TOKENS = 60
"""New tokens of a window, about those of 30 s of speech."""
WINDOW_S = 30
ROUNDS = 3
MAKE_S, PART_S = 400, 120
TITLE = "Speech"
Generate = Callable[[Array, int, int], object]
"""A function of features [B, mels, frames], the number of beams and the number of new tokens."""


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Measure both sides of every shape, each in a process of its own."""
    until, work = time.monotonic() + seconds, Path(folder, "speech")
    work.mkdir(parents=True, exist_ok=True)
    device, precision = ("cpu", "fp32") if rehearse else ("cuda", "fp16")
    failed = []
    for shape in ("whisper-tiny",) if rehearse else SHAPES:
        sizes: dict[str, Any] = {"shape": shape, "precision": precision}
        parts = [("make", sizes, MAKE_S)]
        sizes = {**sizes, "device": device, "small": rehearse}
        parts += [("measure", {"side": side, **sizes}, PART_S) for side in ("tightbeam", "transformers")]
        for part, arguments, most_s in parts:
            output = work / "part.jsonl"
            output.unlink(missing_ok=True)
            limit_s = max(1.0, min(most_s, until - time.monotonic()))
            ended = _process.run(f"tools.gpu.speech:{part}", {"work": str(work), **arguments}, output, limit_s)
            yield from (found for found in read(output) if found is not None)
            if ended.outcome != PASSED:
                failed.append(f"{part} of {shape}: {ended.outcome}: {ended.reason}")
    if failed:
        raise SystemExit(f"error: {'; '.join(failed)}")


def make(work: str, shape: str, precision: str) -> Iterator[Found]:
    """Make the checkpoint and its bundle, where they are not there yet."""
    checkpoint, bundle = Path(work, shape), Path(work, f"{shape}-{precision}")
    if not checkpoint.exists():
        make_checkpoint(checkpoint, shape=shape)
    if not bundle.exists():
        start = time.perf_counter()
        export_model(checkpoint, bundle, variant="dedup", precision=precision, check=False)
        yield "Speech bundles", {"bundle": bundle.name, "seconds": time.perf_counter() - start}


def measure(work: str, side: str, shape: str, precision: str, device: str, small: bool) -> Iterator[Found]:
    """Time whole batches of windows, at each batch size and number of beams."""
    generate = (_ours if side == "tightbeam" else _theirs)(Path(work), shape, precision, device)
    sizes = json.loads(Path(work, shape, "config.json").read_text("utf-8"))
    frames, rounds = 2 * sizes["max_source_positions"], 1 if small else ROUNDS
    for batch in (2,) if small else BATCHES:
        features = np.random.default_rng(batch).standard_normal((batch, sizes["num_mel_bins"], frames), np.float32)
        for beams in BEAMS:
            cells = {"shape": shape, "side": side, "batch": batch, "beams": beams}
            yield from tried(TITLE, cells, partial(_timed, generate, features, beams, rounds))


def _timed(generate: Generate, features: Array, beams: int, rounds: int) -> dict[str, Any]:
    """Cells: the real-time factor, and the seconds of which it is made."""
    generate(features, beams, TOKENS)
    whole, one = (median(_seconds(partial(generate, features, beams, n)) for _ in range(rounds)) for n in (TOKENS, 1))
    step_s = (whole - one) / (TOKENS - 1)
    factor = len(features) * WINDOW_S / whole
    return {"real-time factor": factor, "seconds": whole, "encoder s": one - step_s, "step ms": 1e3 * step_s}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _ours(work: Path, shape: str, precision: str, device: str) -> Generate:
    runner = Runner.load(work / f"{shape}-{precision}", device=device, verify=False)

    def generate(features: Array, beams: int, tokens: int) -> object:
        settings: dict[str, Any] = {"num_beams": beams, "max_new_tokens": tokens, "min_new_tokens": tokens}
        return runner.generate_from_features(features, language="en", task="transcribe", **settings)

    return generate


def _theirs(work: Path, shape: str, precision: str, device: str) -> Generate:
    """The decoder's own search, without the loop over windows, which needs a trained model's timestamps."""
    import torch
    from transformers import GenerationMixin, WhisperForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    dtype = {"fp16": torch.float16, "fp32": torch.float32}[precision]
    auto: Any = WhisperForConditionalGeneration
    search: Any = GenerationMixin.generate
    model = auto.from_pretrained(work / shape, dtype=dtype, attn_implementation="sdpa").eval().to(device)
    start = torch.tensor([[50258, 50259, 50359, 50363]], device=device)

    def generate(features: Array, beams: int, tokens: int) -> object:
        inputs = torch.from_numpy(features).to(device, dtype)
        settings = {"num_beams": beams, "max_new_tokens": tokens, "min_new_tokens": tokens, "max_length": None}
        begun = start.expand(len(features), -1)
        with torch.no_grad():
            return search(model, inputs, decoder_input_ids=begun, do_sample=False, **settings).cpu()

    return generate
