"""Comparison of two forms of a model: their log-probabilities at each step, with the same tokens fed to both.

    python -m tightbeam.export.accuracy.compare [--times] BUNDLE OTHER STEPS [TEXT ...]

compares two bundles on ONNX Runtime and prints the result as JSON; with ``--times``, also the times of both. Before
it, a line ``DONE OF`` says after each step how many of all are done. The tokens are the best ones of the first bundle.
An export measures the error of half precision and of int8 by this command (``precision_error.py``), in a process
without torch.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tightbeam.deploy.arrays import Array, Ints, right_pad
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError, GenerationError, NonFiniteError
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.runtimes.base import FEATURE_INPUTS, Decoding, Runtime
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.search import StepInputs
from tightbeam.deploy.text.tokenizer import load_codec

__all__ = [
    "TIMES",
    "Comparison",
    "Prompts",
    "Sources",
    "Times",
    "compare_runtimes",
    "log_probabilities",
    "sources_of",
    "times_of",
]

TIMES = "--times"
"""The option that asks for times."""
STEPS = 16
SAMPLES = 4
ROUNDS = 5
TOKENS = 48
"""Most tokens of a source. A short source shows rounding as well as a long one."""
BEGINNING = frozenset({"decoder_start_token_id", "bos_token_id", "pad_token_id"})
"""The generation defaults that a comparison uses: the tokens of the first step."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of a batch as rows of tokens.

    Attributes
    ----------
    tokens : int64 [B, P]
        The prompts, padded on the left. The decoder is fed the last token of each first.
    first_positions : int32 [B]
        The position of each prompt's last token. Padding has no position.
    """

    tokens: Ints
    first_positions: Array


@dataclass(frozen=True)
class Sources:
    """A batch to generate from.

    Attributes
    ----------
    source, mask
        Arguments of ``Runtime.begin``. The source of a prompt is all but its last token.
    prompts : Prompts or None
        The prompts of a decoder-only model.
    """

    source: Array
    mask: Array
    prompts: Prompts | None = None

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]], *, decoder_only: bool) -> Sources:
        """Make a batch of B rows of token ids: sources of an encoder-decoder, or prompts of a decoder-only model."""
        ids, mask = right_pad(rows)
        if not decoder_only:
            return cls(ids, mask)
        lengths = mask.sum(axis=1)
        N = max(1, ids.shape[1] - 1)
        mask = (np.arange(N) < lengths[:, None] - 1).astype(np.int64)
        tokens = right_pad([row[::-1] for row in rows])[0][:, ::-1]
        return cls(ids[:, :N] * mask, mask, Prompts(tokens, (lengths - 1).astype(np.int32)))

    @property
    def first_length(self) -> int:
        """Tokens of a row when the decoder is fed for the first time: P of a prompt, otherwise the start token."""
        return 1 if self.prompts is None else self.prompts.tokens.shape[1]


@dataclass(frozen=True)
class Comparison:
    """Relative error of log-probabilities.

    Attributes
    ----------
    error : float
        Root mean square of the difference, over the standard deviation of the first form's log-probabilities, unless
        they are all equal; infinity if a score is NaN or infinite.
    steps : int
        Steps times samples.
    differing : int
        The number of these at which the two forms have different best tokens.
    """

    error: float
    steps: int
    differing: int


@dataclass(frozen=True)
class Times:
    """Seconds that two forms of a model take to encode a batch, and for a step; the exact form is first."""

    encoder_s: tuple[float, float]
    step_s: tuple[float, float]


def sources_of(bundle: Bundle, texts: tuple[str, ...] = ()) -> Sources:
    """Make a batch of ``texts``; without texts of random tokens, and for speech or images of random features."""
    sizes = bundle.manifest.sizes
    generator = np.random.default_rng(0)
    longest = min(TOKENS, sizes.max_source)
    features_of = {
        tensor.name: tensor.shape for tensor in bundle.manifest.encoder.inputs if tensor.name in FEATURE_INPUTS
    }
    if features_of:
        (shape,) = features_of.values()
        lengths = {"X": bundle.manifest.longest_source(longest), "N": longest}  # of whole recordings, and of patches
        features = generator.uniform(
            -1, 1, (SAMPLES, *(lengths[size] if isinstance(size, str) else size for size in shape[1:]))
        )
        positions = longest if lengths.keys() & set(shape) else sizes.max_source
        return Sources(features.astype(np.float32), np.ones((SAMPLES, positions), np.int64))
    codec = load_codec(bundle) if texts else None
    rows = [codec.encode(text)[:longest] for text in texts] if codec else []
    if not rows:
        rows = [list(generator.integers(0, sizes.source_vocabulary, longest - i)) for i in range(min(SAMPLES, longest))]
    return Sources.of_rows(rows, decoder_only=sizes.decoder_only)


def compare_runtimes(
    bundle: Bundle,
    runtime: Runtime,
    other: Runtime,
    sources: Sources,
    *,
    steps: int = STEPS,
    candidates: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run both runtimes over ``sources``, greedily, without score processors.

    Parameters
    ----------
    bundle
        The bundle, for its sizes and the beginning of a sequence.
    runtime, other
        The exact form of the model, and the one to compare with it.
    sources
        B samples.
    steps
        Tokens to generate, at most as many as the model has positions.
    candidates
        Best tokens to compare in each step, for a runtime that gives no more; all by default. Tokens that only one
        runtime gives do not count.
    on_step
        Called after each step of each runtime.

    Returns
    -------
    Comparison
        The relative error; ``steps`` are B times the steps that ran.
    """
    C = candidates if candidates is not None else bundle.manifest.sizes.vocabulary
    P = sources.first_length
    steps = min(steps, bundle.manifest.sizes.max_target - P)
    wanted, tokens = log_probabilities(bundle, runtime, sources, steps, C, None, on_step)
    try:
        found, _ = log_probabilities(bundle, other, sources, steps, C, tokens, on_step)
    except NonFiniteError:
        return Comparison(math.inf, tokens.size, tokens.size)
    differing = int((np.nanargmax(wanted, axis=2) != np.nanargmax(found, axis=2)).sum())
    wanted = np.where(np.isnan(found), np.nan, wanted)
    difference = _root_mean_square(found - wanted)
    spread = _root_mean_square(wanted - np.nanmean(wanted, axis=2, keepdims=True))
    return Comparison(difference / spread if spread else difference, tokens.size, differing)


def _root_mean_square(numbers: Array) -> float:
    return float(np.sqrt(np.nanmean(np.square(numbers))))


def log_probabilities(
    bundle: Bundle,
    runtime: Runtime,
    sources: Sources,
    steps: int,
    candidates: int,
    forced: Array | None,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Array, Array]:
    """Compute the log-probabilities of a generation.

    Parameters
    ----------
    bundle
        The bundle, for its sizes and the beginning of a sequence.
    runtime
        The form of the model to run.
    sources
        B samples.
    steps
        Tokens to generate.
    candidates
        Best tokens of each step.
    forced
        Tokens [B, steps] to feed after each step; None feeds the best ones.
    on_step
        Called after each step.

    Returns
    -------
    float64 [B, steps, vocabulary]
        Log-probabilities of the best ``candidates``; NaN elsewhere.
    int64 [B, steps]
        The tokens that were fed.
    """
    B, vocabulary = len(sources.source), bundle.manifest.sizes.vocabulary
    decoding, stepper, P = _begin(bundle, runtime, sources, steps, candidates)
    found, chosen = np.full((B, steps, vocabulary), np.nan), np.zeros((B, steps), np.int64)
    for step in range(steps):
        best = stepper(_step_inputs(stepper, P + step))
        np.put_along_axis(found[:, step], best.tokens, best.scores.astype(np.float64), axis=1)
        chosen[:, step] = best.tokens[:, 0] if forced is None else forced[:, step]
        if step + 1 < steps:
            stepper.history[:, 0, P + step] = chosen[:, step]
        on_step()
    decoding.close()
    return found, chosen


def _step_inputs(stepper: BeamStepper, length: int) -> StepInputs:
    """Return the inputs of the step after ``length`` tokens of each sequence, with one beam."""
    so_far = stepper.history[:, :, :length]
    B = len(so_far)
    parents, scores, banned = np.zeros((B, 1), np.int64), np.zeros((B, 1), np.float32), np.zeros((B, 1, 0), np.int64)
    return StepInputs(so_far[:, :, -1], so_far, np.full(B, length), parents, scores, banned)


def _begin(
    bundle: Bundle, runtime: Runtime, sources: Sources, steps: int, candidates: int
) -> tuple[Decoding, BeamStepper, int]:
    """Encode a batch. Returns its decoding, its stepper with the beginning of each sequence, and that length."""
    prompts, P = sources.prompts, sources.first_length
    settings = {"num_beams": 1, "num_return_sequences": 1, "max_length": P + steps}
    resolved = resolve_settings(
        {name: value for name, value in bundle.manifest.generation.items() if name in BEGINNING},
        settings,
        bundle.manifest.sizes,
        speech=False,
    )
    options = resolved.for_prompt(P)
    decoding = runtime.begin(sources.source, sources.mask, 1, steps, candidates, P)
    stepper = BeamStepper(decoding, options)
    for sample in range(len(sources.source)):
        stepper.join(sample, P, 0 if prompts is None else int(prompts.first_positions[sample]))
    decoding.inputs["normalize"][...] = True
    decoding.inputs["candidates"][...] = candidates
    stepper.history[:, 0, :P] = options.prompt[0] if prompts is None else prompts.tokens
    return decoding, stepper, P


def times_of(
    bundle: Bundle, runtime: Runtime, other: Runtime, sources: Sources, on_step: Callable[[], None] = lambda: None
) -> Times:
    """Time both runtimes in turn: the median of ``ROUNDS`` encodings, and of ``ROUNDS`` steps after each encoding."""
    encoder_s: tuple[list[float], list[float]] = ([], [])
    step_s: tuple[list[float], list[float]] = ([], [])
    P = sources.first_length
    steps = min(ROUNDS, bundle.manifest.sizes.max_target - P)
    for _ in range(ROUNDS):
        for index, timed in enumerate((runtime, other)):
            start_s = time.perf_counter()
            decoding, stepper, P = _begin(bundle, timed, sources, steps, 1)
            encoder_s[index].append(time.perf_counter() - start_s)
            for length in range(P, P + steps):
                start_s = time.perf_counter()
                best = stepper(_step_inputs(stepper, length))
                step_s[index].append(time.perf_counter() - start_s)
                if length + 1 < P + steps:
                    stepper.history[:, 0, length] = best.tokens[:, 0]
                on_step()
            decoding.close()
    first, second = ((statistics.median(times), statistics.median(others)) for times, others in (encoder_s, step_s))
    return Times(first, second)


def main() -> None:
    """Entry point, with the arguments [--times] BUNDLE OTHER STEPS [TEXT ...]. An error is one line."""
    timed = sys.argv[1] == TIMES
    one, two, most, *texts = sys.argv[2 if timed else 1 :]
    try:
        reference, other = Bundle.load(Path(one), verify=False), Bundle.load(Path(two), verify=False)
        sources, steps = sources_of(reference, tuple(texts)), min(STEPS, int(most))
        runtimes = OnnxRuntimeCpu(reference), OnnxRuntimeCpu(other)
        longest = reference.manifest.sizes.max_target - sources.first_length
        total = 2 * min(steps, longest) + (2 * ROUNDS * min(ROUNDS, longest) if timed else 0)
        done = itertools.count(1)

        def on_step() -> None:
            print(next(done), total, flush=True)

        found = asdict(compare_runtimes(reference, *runtimes, sources, steps=steps, on_step=on_step))
        # A model whose scores are NaN or infinite cannot take the steps that are timed; its error says so.
        if timed and math.isfinite(found["error"]):
            found["times"] = asdict(times_of(reference, *runtimes, sources, on_step))
    except (BundleError, GenerationError) as error:
        sys.exit(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
