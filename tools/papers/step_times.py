"""The gain of a cache: FastSeq's Table 2 in relative form, and Lei Mao's orders of growth, on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration, GenerationConfig
from transformers.utils import logging

from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export import export_model
from tools.bench.timed_runtime import TimedRuntime
from tools.bench.turns import in_turn

__all__ = ["Ablation", "Fit", "Growth", "check_folder", "fit", "time_ablation", "time_growth"]
BEAMS = 4
LARGER = 4
"""Factor between the two batch sizes, as from 32 to 128 in the paper."""
TOLERANCE = 1e-5
"""Largest difference of logits with and without cache, relative to the largest logit; float32 has 6e-8 a number."""


@dataclass(frozen=True)
class Ablation:
    """Samples/s of whole generations of ``tokens`` tokens, by form of the cache."""

    tokens: int
    samples_per_second: dict[str, float]


def check_folder(checkpoint: Path) -> None:
    """Raise SystemExit for a path that is no checkpoint folder."""
    if not (checkpoint / "config.json").is_file():
        raise SystemExit(
            f"error: {checkpoint} is no checkpoint folder (it has no config.json); pass --checkpoint FOLDER"
        )


def time_ablation(checkpoint: Path, B: int, N: int, T: int, rounds: int, threads: int | None) -> Ablation:
    """Generate T tokens for B sources of N random tokens with 4 beams, without a cache, and with each kind.

    ``checkpoint``: a folder of a BART-like model. Raises SystemExit for another one, for lengths beyond its positions,
    and where two of the ways generate different tokens; ExportError as `export_model`.
    """
    _prepare_torch(threads)
    check_folder(checkpoint)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(checkpoint).eval()
    positions = model.config.max_position_embeddings
    if max(N, T + 1) > positions:
        raise SystemExit(f"error: source {N} or new tokens {T} + 1 exceed the {positions} positions of {checkpoint}")
    ids = np.random.default_rng(0).integers(5, model.config.vocab_size, (LARGER * B, N))
    settings: dict[str, Any] = {"num_beams": BEAMS, "no_repeat_ngram_size": 3, "min_new_tokens": T, "max_new_tokens": T}

    def by_torch(use_cache: bool) -> Callable[[], Array]:
        few = torch.from_numpy(ids[:B])

        def generate() -> Array:
            with torch.no_grad():
                mask = torch.ones_like(few)
                tokens = model.generate(few, attention_mask=mask, use_cache=use_cache, max_length=None, **settings)
                return np.asarray(tokens)

        return generate

    with tempfile.TemporaryDirectory() as folder:
        runners = {
            variant: Runner(bundle, OnnxRuntimeCpu(bundle, threads), None)
            for variant in ("baseline", "dedup")
            for bundle in [export_model(checkpoint, Path(folder) / variant, variant=variant)]
        }
        work: dict[str, Callable[[], Array]] = {
            "no cache (torch)": by_torch(False),
            "conventional cache (torch)": by_torch(True),
            "conventional cache (baseline)": lambda: runners["baseline"].generate(ids[:B], **settings).sequences,
            "deduplicated cache (dedup)": lambda: runners["dedup"].generate(ids[:B], **settings).sequences,
        }
        found = {name: generate() for name, generate in work.items()}
        for name, tokens in found.items():
            if not np.array_equal(tokens, found["no cache (torch)"]):
                raise SystemExit(f"error: {name} generates other tokens than no cache; measure with another checkpoint")
        larger = f"deduplicated cache, batch {LARGER} times larger"
        work[larger] = lambda: runners["dedup"].generate(ids, **settings).sequences
        seconds = in_turn(work, rounds)
    return Ablation(T, {name: (LARGER * B if name == larger else B) / taken for name, taken in seconds.items()})


@dataclass(frozen=True)
class Fit:
    """A polynomial in T by least squares, lowest power first, and the share of the variance that it explains."""

    coefficients: tuple[float, ...]
    r_squared: float

    def __call__(self, T: float) -> float:
        return sum(coefficient * T**power for power, coefficient in enumerate(self.coefficients))


def fit(lengths: Sequence[float], ms: Sequence[float], degree: int) -> Fit:
    """Least squares; R^2 as 1 - residual over total sum of squares."""
    found = np.polynomial.Polynomial.fit(lengths, ms, degree).convert()
    coefficients = tuple(float(c) for c in np.pad(found.coef, (0, degree + 1 - len(found.coef))))
    left = np.asarray(ms) - found(np.asarray(lengths))
    total = np.asarray(ms) - np.mean(ms)
    return Fit(coefficients, 1.0 - float(left @ left) / float(total @ total))


@dataclass(frozen=True)
class Growth:
    """Milliseconds of a step after T tokens: with our cache for every T from 1, without a cache for some."""

    cached_ms: list[float]
    uncached_ms: dict[int, float]

    def blocks(self, size: int = 16) -> tuple[list[float], list[float]]:
        """Middle T and median ms of each block of ``size`` cached steps; a last block that is not whole is left out."""
        starts = range(0, len(self.cached_ms) - size + 1, size)
        medians = [float(np.median(self.cached_ms[start : start + size])) for start in starts]
        return [start + (size + 1) / 2 for start in starts], medians


def time_growth(variant: str, B: int, N: int, lengths: Sequence[int], rounds: int, threads: int | None) -> Growth:
    """Times of greedy steps of a random model (4 layers, width 256), with the cache of ``variant`` and, in torch,
    over the whole prefix again. The last of ``lengths`` is how far the cached run goes.

    Checked first: the bundle generates torch's tokens, and torch's logits with a cache are those without one.
    Raises SystemExit where they are not.
    """
    _prepare_torch(threads)
    longest = max(lengths)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        model = _random_model(checkpoint, max(longest + 2, N))
        ids = np.random.default_rng(0).integers(5, model.config.vocab_size, (B, N))
        _check_logits(model, ids[:1], min(32, longest))
        bundle = export_model(checkpoint, Path(folder) / variant, variant=variant)
        runs = [_step_times(bundle, ids, longest, threads) for _ in range(rounds)]
    cached = [1e3 * float(np.median(times)) for times in zip(*runs, strict=True)]
    prefix = torch.from_numpy(np.random.default_rng(1).integers(5, model.config.vocab_size, (B, longest)))
    with torch.no_grad():
        encoded = model.get_encoder()(torch.from_numpy(ids))

        def over_prefix(T: int) -> Callable[[], None]:
            def run() -> None:
                with torch.no_grad():
                    model(encoder_outputs=encoded, decoder_input_ids=prefix[:, :T], use_cache=False)

            return run

        seconds = in_turn({str(T): over_prefix(T) for T in lengths}, rounds)
    return Growth(cached, {int(T): 1e3 * taken for T, taken in seconds.items()})


def _prepare_torch(threads: int | None) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)


def _random_model(folder: Path, positions: int) -> Any:
    torch.manual_seed(0)
    one_side = {"layers": 4, "ffn_dim": 1024, "attention_heads": 4}
    sides: dict[str, Any] = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in one_side.items()
    }
    config = BartConfig(vocab_size=2000, d_model=256, max_position_embeddings=positions, init_std=0.1, **sides)
    model = BartForConditionalGeneration(config).eval()
    model.generation_config = GenerationConfig(
        decoder_start_token_id=2, eos_token_id=2, pad_token_id=1, bos_token_id=0, num_beams=1, max_length=positions
    )
    model.save_pretrained(folder)
    return model


def _check_logits(model: Any, ids: Array, T: int) -> None:
    """Raise SystemExit unless logits with a cache are those without one."""
    source, prefix = torch.from_numpy(ids), torch.from_numpy(ids[:, :T])
    with torch.no_grad():
        whole = model(input_ids=source, decoder_input_ids=prefix, use_cache=False).logits
        encoded, past, steps = model.get_encoder()(source), None, []
        for t in range(prefix.shape[1]):
            one = prefix[:, t : t + 1]
            output = model(encoder_outputs=encoded, decoder_input_ids=one, past_key_values=past, use_cache=True)
            past = output.past_key_values
            steps.append(output.logits)
    error = float((torch.cat(steps, dim=1) - whole).abs().max() / whole.abs().max())
    if not error <= TOLERANCE:
        raise SystemExit(f"error: logits with a cache differ by {error:.1e} from those without, more than {TOLERANCE}")


def _step_times(bundle: Bundle, ids: Array, T: int, threads: int | None) -> list[float]:
    """Seconds of each step of a greedy generation of T tokens."""
    runtime = TimedRuntime(OnnxRuntimeCpu(bundle, threads))
    Runner(bundle, runtime, None).generate(ids, num_beams=1, min_new_tokens=T, max_new_tokens=T)
    return runtime.step_s
