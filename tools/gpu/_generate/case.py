"""One way to generate, at one batch size: its tokens, seconds in total and by part, and memory. Processes of
`generate.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tightbeam.deploy import Runner, SearchResult
from tightbeam.deploy.arrays import Array
from tightbeam.export.accuracy.parity import TIE_TOLERANCE
from tools.gpu._generate.make import CHECKED_IN, bundle_folder, checkpoint_folder
from tools.gpu._process import Found

__all__ = ["CASE", "COMPILED", "EQUAL", "PEERS", "check", "measure", "source_ids", "verdict"]

CASE = "case"
"""Title of the rows with the cells of a case."""
EQUAL = "equal"
"""Beginning of the verdict on equal tokens."""
COMPILED = "transformers compiled"
PEERS: Mapping[str, Mapping[str, Any]] = {
    "transformers": {},
    COMPILED: {"cache_implementation": "static"},  # beams compile nothing by themselves, so `_transformers` does
    "transformers no cache": {"use_cache": False},
}
"""Ways of transformers, and their settings."""
CACHES = ("source", "generated")
EVERY_S = 0.01
GIB = 2**30
Generate = Callable[[int], Array]
"""From a number of new tokens to tokens [B, T]."""


def source_ids(vocabulary: int, batch: int, source: int, seed: int = 0) -> Array:
    """Random ids [B, N]; a smaller batch is a prefix of a larger one."""
    return np.random.default_rng(seed).integers(5, vocabulary, (batch, source))


def settings_of(new_tokens: int) -> dict[str, Any]:
    """Arguments of ``generate`` for so many tokens, for a bundle and for transformers."""
    return {"num_beams": 4, "no_repeat_ngram_size": 3, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}


def check(variant: str, work: str, device: str, source: int, new_tokens: int) -> Iterator[Found]:
    """Compare the tokens of a variant with transformers' on this device, in float32, on sources of two lengths. Other
    families are compared by `pytest -m gpu`.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # our runtime does not use it
    model = _model(checkpoint_folder(Path(work)), torch.float32, device)
    ids = source_ids(model.config.vocab_size, 2, source, seed=1)
    mask = np.ones_like(ids)
    mask[1, source // 2 :] = 0
    settings = {**settings_of(new_tokens), "length_penalty": 0.0}  # scores are sums, in which the least error shows
    with torch.no_grad():
        made = model.generate(
            torch.from_numpy(ids).to(device),
            attention_mask=torch.from_numpy(mask).to(device),
            **{**settings, "max_length": None, "return_dict_in_generate": True, "output_scores": True},
        )
    expected = SearchResult(made.sequences.cpu().numpy(), made.sequences_scores.float().cpu().numpy())
    runner = Runner.load(bundle_folder(Path(work), variant, CHECKED_IN), device=device, verify=False)
    said = verdict(runner.generate(ids, mask, **settings), expected)
    yield CASE, {"tokens": int(expected.sequences.size), "as transformers' in float32": said}


def verdict(found: SearchResult, expected: SearchResult) -> str:
    """``EQUAL``; or the number of sequences that are ties, with equal scores in float32; or the first difference."""
    if found.sequences.shape != expected.sequences.shape:
        return f"shape {list(found.sequences.shape)}, expected {list(expected.sequences.shape)}"
    assert found.scores is not None and expected.scores is not None
    different = np.flatnonzero((found.sequences != expected.sequences).any(axis=1))
    for sample in different:
        ours, theirs = float(found.scores[sample]), float(expected.scores[sample])
        if not abs(ours - theirs) <= TIE_TOLERANCE * max(1.0, abs(theirs)):
            at = int(np.flatnonzero(found.sequences[sample] != expected.sequences[sample])[0])
            tokens = found.sequences[sample, at], expected.sequences[sample, at]
            return f"differs: sample {sample}, token {at} is {tokens[0]}, expected {tokens[1]}; scores {ours}, {theirs}"
    return EQUAL if not len(different) else f"{EQUAL} but for {len(different)} ties"


def _model(folder: Path, dtype: Any, device: str) -> Any:
    from transformers import AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    auto: Any = AutoModelForSeq2SeqLM
    return auto.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval().to(device)


def _ours(folder: Path, device: str, ids: Array) -> tuple[Generate, Callable[[], dict[str, Any]]]:
    """How a bundle generates, and what it knows of its memory afterwards."""
    runner = Runner.load(folder, device=device, verify=False)

    def memory() -> dict[str, Any]:
        return {f"{name} cache GiB": part / GIB for name, part in zip(CACHES, runner.cache_bytes, strict=True)}

    return lambda new_tokens: runner.generate(ids, **settings_of(new_tokens)).sequences, memory


def _transformers(
    side: str, folder: Path, device: str, precision: str, ids: Array
) -> tuple[Generate, Callable[[], dict[str, Any]]]:
    """Likewise. torch's own peak counts tensors without its allocator's reserve."""
    import torch

    model = _model(folder, {"fp16": torch.float16, "fp32": torch.float32}[precision], device)
    if side == COMPILED:  # a rehearsal need not wait for a compiler
        model.forward = torch.compile(model.forward, backend="inductor" if device == "cuda" else "eager")
    source = torch.from_numpy(ids).to(device)

    def generate(new_tokens: int) -> Array:
        settings = {**settings_of(new_tokens), **PEERS[side], "max_length": None}
        with torch.no_grad():
            return np.asarray(model.generate(source, attention_mask=torch.ones_like(source), **settings).cpu())

    peak = torch.cuda.max_memory_allocated
    return generate, lambda: {"torch's GiB": peak() / GIB} if device == "cuda" else {}


@contextmanager
def _peak(device: str) -> Iterator[list[int]]:
    """Sample the most bytes taken beyond those at the start, by all processes on a GPU, or resident on the host. Every
    10 ms is enough for allocators that never return memory. On a GPU the context counts as idle.
    """

    def used() -> int:
        if device == "cpu":
            return 1024 * int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])
        code, free, total = runtime.cudaMemGetInfo()
        if code != runtime.cudaError_t.cudaSuccess:
            raise RuntimeError(f"CUDA: cudaMemGetInfo failed ({code.name})")
        return int(total - free)

    if device == "cuda":
        from cuda.bindings import runtime

        runtime.cudaFree(0)
    idle, peak, over = used(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            peak[0] = max(peak[0], used() - idle)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


class _Warnings(logging.Handler):
    """Collects distinct warnings of our runtime."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.lines[record.getMessage()] = None


def measure(
    side: str,
    batch: int,
    work: str,
    device: str,
    precision: str,
    source: int,
    new_tokens: int,
    vocabulary: int,
    rounds: int,
    seconds: float,
) -> Iterator[Found]:
    """Time whole generations, and those of one token, which are mostly the encoder's.

    Parameters
    ----------
    side : str
        A key of ``PEERS``, else a variant of ours.
    rounds : int
        Generations that are timed after a warm-up, fewer if they take longer than ``seconds``.
    """
    warnings = _Warnings()
    logging.getLogger("tightbeam").addHandler(warnings)
    ids, folder = source_ids(vocabulary, batch, source), Path(work)
    found: list[Array] = []
    with _peak(device) as peak:
        if side in PEERS:
            generate, memory = _transformers(side, checkpoint_folder(folder), device, precision, ids)
        else:
            generate, memory = _ours(bundle_folder(folder, side, precision), device, ids)
        times = _times(lambda: found.append(generate(new_tokens)), rounds, seconds)
    if side == next(iter(PEERS)):
        np.save(folder / f"tokens-{precision}-{batch}.npy", found[0])
    yield from (f"{side}, {batch}: {line}" for line in warnings.lines)
    if not all(np.array_equal(tokens, found[0]) for tokens in found):
        yield f"{side}, {batch}: not every run gave the same tokens."
    yield CASE, {"seconds": median(times), "rounds": times, "peak GiB": peak[0] / GIB, **memory()}
    yield CASE, {"tokens as transformers": _share(folder, precision, found[0])}
    if side != COMPILED:  # another length would be compiled anew, which takes minutes
        one_s = median(_times(lambda: generate(1), rounds, seconds / 10))
        step_s = (median(times) - one_s) / (new_tokens - 1)  # the host's part of the search included
        yield CASE, {"encoder s": one_s - step_s, "step ms": 1e3 * step_s}


def _times(work: Callable[[], object], rounds: int, seconds: float) -> list[float]:
    """Seconds of each round after a first one. Tokens come to the host, so that a round waits for the GPU."""
    work()
    times: list[float] = []
    while len(times) < rounds and (not times or sum(times) < seconds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def _share(folder: Path, precision: str, ours: Array) -> str | None:
    """Share of tokens that equal transformers' for the same samples, at its largest measured batch up to this one."""
    batches = [int(path.stem.rpartition("-")[2]) for path in folder.glob(f"tokens-{precision}-*.npy")]
    there = [batch for batch in batches if batch <= len(ours)]
    if not there:
        return None
    theirs = np.load(folder / f"tokens-{precision}-{max(there)}.npy")
    return f"{np.mean(ours[: len(theirs)] == theirs):.1%}" if ours.shape[1:] == theirs.shape[1:] else "0.0%"
