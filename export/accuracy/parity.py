"""The comparison that ends an export: the same inputs through ``model.generate`` and through the finished bundle.

The bundle runs in a process of its own, through the command that its users run, which has no torch in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightbeam.deploy.bundle.manifest import Manifest, ParityReport
from tightbeam.export.accuracy.sample_texts import SAMPLE_TEXTS
from tightbeam.export.checkpoint.audio import SpeechSamples, speech_samples
from tightbeam.export.checkpoint.generation import disable_sampling
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError, first_line

SETTINGS: tuple[dict[str, Any], ...] = (
    {},  # the checkpoint's own
    {"num_beams": 1},
    {"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 2.0},
)
MAX_NEW_TOKENS = 24
MAX_NEW_TOKENS_OF_LARGE = 10
LARGE = 100_000_000
"""Numbers from which on a model takes seconds a token in torch, so that the comparison is kept shorter."""
MAX_SAMPLE_TOKENS = 48
SCORE_TOLERANCE = 1e-3
"""Largest difference of a sequence score, per unit of score. The tokens decide; this finds a score that is wrong
rather than rounded (1e-4 was seen with torch itself, on ill-conditioned random weights)."""
TIE_TOLERANCE = 1e-6
"""Two sequences whose scores differ by less, per unit of score, are equally good in float32."""


@dataclass(frozen=True)
class Generation:
    """What torch returned under one setting: tokens without padding; scores for beam search; texts with a tokenizer."""

    settings: dict[str, Any]
    sequences: list[list[int]]
    scores: list[float] | None
    texts: list[str] | None


@dataclass(frozen=True)
class TextSamples:
    """Lines of text, or of token ids, with the ids of each. ``pad_left_with``: the token that prompts are padded with
    on the left; None for a model with an encoder."""

    texts: tuple[str, ...]
    rows: tuple[list[int], ...]
    as_ids: bool
    pad_left_with: int | None

    def lines(self, folder: Path) -> tuple[str, ...]:
        """Input for the command; ``folder`` is room for files that it names."""
        return self.texts

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """The same input for ``model.generate``, padded as the command pads it."""
        N = max(map(len, self.rows))
        ids = torch.full((len(self.rows), N), self.pad_left_with or 0, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(self.rows):
            place = slice(len(row)) if self.pad_left_with is None else slice(N - len(row), N)
            ids[index, place] = torch.tensor(row)
            mask[index, place] = 1
        # Of whole numbers, ProphetNet makes float32's scores, in which float64's lowest has no place.
        return {"inputs": ids, "attention_mask": mask.double() if dtype == torch.float64 else mask}

    def shown(self, text: str) -> str:
        """A decoded text as the command shows it."""
        return text


Samples = TextSamples | SpeechSamples


@dataclass(frozen=True)
class Reference:
    """Inputs, and what ``model.generate`` makes of them."""

    checkpoint: Path
    samples: Samples
    generations: tuple[Generation, ...]

    @property
    def greedy(self) -> list[list[int]]:
        """What greedy search made of the samples; of a decoder-only model with the prompts."""
        found = next(generation for generation in self.generations if generation.settings.get("num_beams") == 1)
        return _whole(self.samples, found.sequences)


def make_reference(checkpoint: Checkpoint) -> Reference:
    """Generate with torch, on short texts where there is a tokenizer, else on random token ids; or on sounds."""
    samples = samples_of(checkpoint)
    with _errors_as_ours():
        longest = max(map(len, samples.rows))
        generations = tuple(_generate(checkpoint, samples, settings) for settings in _settings(checkpoint, longest))
    return Reference(checkpoint.path, samples, generations)


def is_exact(manifest: Manifest) -> bool:
    """Whether a bundle's tokens are to be torch's own in float32."""
    return not manifest.weight_threshold and manifest.precision == "fp32"


def compare(folder: Path, manifest: Manifest, reference: Reference) -> ParityReport:
    """Run the bundle on the reference's inputs. Raises ExportError at the first token that differs, unless two
    sequences are equally good in float32, or torch picks the bundle's in float64: such a tie is counted, and so is
    every difference of a bundle that is not to be exact."""
    tokens = ties = differing = 0
    error = 0.0
    exact = is_exact(manifest)
    for expected in reference.generations:
        records = _run(folder, reference, expected.settings)
        if len(records) != len(expected.sequences):
            raise ExportError(f"the bundle gave {len(records)} results for {len(expected.sequences)} inputs")
        for index, record in enumerate(records):
            if record.get("tokens") != expected.sequences[index]:
                if not exact:
                    differing += 1
                    continue
                if _is_tie(reference, expected, record, index):
                    ties += 1
                    continue
            tokens += len(expected.sequences[index])
            tolerance = SCORE_TOLERANCE if exact else float("inf")
            error = max(error, _compare_one(record, expected, index, reference.samples.as_ids, tolerance))
    if not tokens and not differing:
        raise ExportError("rounding alone picks all that this checkpoint generates: nothing to compare; use --no-check")
    return ParityReport(
        samples=len(reference.samples.rows),
        settings=len(reference.generations),
        tokens=tokens,
        ties=ties,
        differing=differing,
        max_score_error=error,
    )


def _is_tie(reference: Reference, expected: Generation, record: dict[str, Any], index: int) -> bool:
    """Whether rounding decides between the two sequences, rather than the model."""
    if expected.scores is not None and record.get("score") is not None:
        score = expected.scores[index]
        if abs(float(record["score"]) - score) <= TIE_TOLERANCE * max(1.0, abs(score)):
            return True
    checkpoint = load_checkpoint(reference.checkpoint)
    disable_sampling(checkpoint)
    checkpoint.model.double()
    exact = _generate(checkpoint, reference.samples, expected.settings)
    return record.get("tokens") == exact.sequences[index]


def _compare_one(record: dict[str, Any], expected: Generation, index: int, as_ids: bool, tolerance: float) -> float:
    """Relative error of the score; raises where tokens, text or score differ."""
    where = f"sample {index}, settings {expected.settings}"
    if record.get("tokens") != expected.sequences[index]:
        raise ExportError(
            f"the bundle does not generate what torch does ({where}): {record.get('tokens')}, expected "
            f"{expected.sequences[index]}; please report this with the checkpoint's config.json "
            "(--no-check exports without this test)"
        )
    if not as_ids and expected.texts is not None and record.get("text") != expected.texts[index]:
        raise ExportError(
            f"the bundle's tokenizer does not decode as the checkpoint's does ({where}): {record.get('text')!r}, "
            f"expected {expected.texts[index]!r}; please report this with the checkpoint's tokenizer"
        )
    if expected.scores is None or record.get("score") is None:  # JSON has no infinity
        return 0.0
    difference = abs(float(record["score"]) - expected.scores[index]) / max(1.0, abs(expected.scores[index]))
    if not difference <= tolerance:
        raise ExportError(f"the bundle's score is off by {difference:.2g} ({where}); please report this")
    return difference


def _run(folder: Path, reference: Reference, settings: dict[str, Any]) -> list[dict[str, Any]]:
    samples = reference.samples
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "settings.json"
        config.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "tightbeam.deploy.command", str(folder), "-", "--json"]
        command += ["--generation-config", str(config), "--batch-size", str(len(samples.rows))]
        command += ["--ids"] if isinstance(samples, TextSamples) and samples.as_ids else []
        text = "".join(f"{line}\n" for line in samples.lines(Path(scratch)))
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[-1])
        raise ExportError(f"the finished bundle does not run: {reason} (--no-check exports without this test)")
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def _settings(checkpoint: Checkpoint, longest_input: int) -> Iterator[dict[str, Any]]:
    """The settings to compare, with a length that keeps the comparison short."""
    beginning = longest_input if checkpoint.sizes.decoder_only else 1
    longest = checkpoint.sizes.max_target - beginning
    own = checkpoint.generation_config
    least = max((own.get("min_length") or 0) + 1 - beginning, (own.get("min_new_tokens") or 0) + 1)
    large = sum(parameter.numel() for parameter in checkpoint.model.parameters()) >= LARGE
    wanted = MAX_NEW_TOKENS_OF_LARGE if large else MAX_NEW_TOKENS
    length = min(longest, wanted, own.get("max_new_tokens") or longest)
    for settings in SETTINGS:
        limits = {"max_new_tokens": length}
        if least > length:
            limits["min_new_tokens"] = length // 2
        alone = {"num_return_sequences": 1} if settings.get("num_beams") == 1 else {}
        yield {**settings, **limits, **alone}


def _generate(checkpoint: Checkpoint, samples: Samples, settings: dict[str, Any]) -> Generation:
    arguments = samples.arguments(checkpoint.model.dtype)
    with torch.no_grad(), quiet_transformers():
        out = checkpoint.model.generate(**arguments, return_dict_in_generate=True, output_scores=True, **settings)
    scores = getattr(out, "sequences_scores", None)
    returned = out.sequences.shape[0] // len(samples.rows)
    ends = settings.get("eos_token_id", checkpoint.model.generation_config.eos_token_id)
    prompt = arguments["inputs"].shape[1] if checkpoint.sizes.decoder_only else 0
    given = 0 if checkpoint.sizes.decoder_only else 1
    sequences = [_without_padding(row, ends, given) for row in out.sequences[::returned, prompt:].tolist()]
    texts = None
    if not samples.as_ids and checkpoint.tokenizer is not None:
        texts = [samples.shown(checkpoint.tokenizer.decode(row, skip_special_tokens=True)) for row in sequences]
    return Generation(settings, sequences, None if scores is None else scores[::returned].tolist(), texts)


def _without_padding(row: list[int], ends: int | list[int] | None, given: int) -> list[int]:
    """A sequence up to its end token, sought after the ``given`` ones, as the command prints it."""
    ids = [] if ends is None else [ends] if isinstance(ends, int) else ends
    end = next((index for index, token in enumerate(row) if index >= given and token in ids), len(row) - 1)
    return row[: end + 1]


def greedy(checkpoint: Checkpoint, samples: Samples) -> list[list[int]]:
    """What ``model.generate`` makes of samples by greedy search, at the length of the comparison; of a decoder-only
    model with the prompts."""
    longest = max(map(len, samples.rows))
    settings = next(settings for settings in _settings(checkpoint, longest) if settings.get("num_beams") == 1)
    with _errors_as_ours():
        return _whole(samples, _generate(checkpoint, samples, settings).sequences)


def _whole(samples: Samples, sequences: list[list[int]]) -> list[list[int]]:
    """Sequences from their beginning on, which those of a decoder-only model have in their prompts."""
    if not isinstance(samples, TextSamples) or samples.pad_left_with is None:
        return sequences
    return [[*prompt, *row] for prompt, row in zip(samples.rows, sequences, strict=True)]


def samples_of(checkpoint: Checkpoint, texts: Sequence[str] = SAMPLE_TEXTS) -> Samples:
    """Synthetic audio for a speech model; else the ``texts`` that tokenize short enough, else random ids."""
    return speech_samples(checkpoint) if checkpoint.family.source_files else _text_samples(checkpoint, texts)


def _padding(checkpoint: Checkpoint) -> int | None:
    """The token that a decoder-only model's prompts are padded with."""
    if not checkpoint.sizes.decoder_only:
        return None
    config = checkpoint.model.generation_config
    ends = config.eos_token_id
    pad = (ends[0] if isinstance(ends, list) else ends) if config.pad_token_id is None else config.pad_token_id
    return pad or 0


def _text_samples(checkpoint: Checkpoint, texts: Sequence[str]) -> TextSamples:
    limit = min(checkpoint.sizes.max_source, MAX_SAMPLE_TOKENS)
    if checkpoint.sizes.decoder_only:  # new tokens need positions too
        limit = min(limit, max(1, checkpoint.sizes.max_source // 2))
    if checkpoint.tokenizer is not None:
        with quiet_transformers():
            found = [_cut(checkpoint.tokenizer, text, limit) for text in texts]
        cut = [(text, ids) for text, ids in found if ids is not None]
        if cut:
            shorter, fitting = zip(*cut, strict=True)
            return TextSamples(shorter, fitting, False, _padding(checkpoint))
    vocabulary = checkpoint.sizes.source_vocabulary
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, vocabulary, size=max(1, limit // (index + 1))).tolist() for index in range(4)]
    return TextSamples(tuple(json.dumps(row) for row in rows), tuple(rows), True, _padding(checkpoint))


def _cut(tokenizer: Any, text: str, limit: int) -> tuple[str, list[int] | None]:
    """The longest beginning of a text, in words, that has at most ``limit`` tokens; None where one word has more."""
    words = text.split()[:limit]  # no word has less than a token
    fits, beyond = 0, len(words) + 1
    ids: list[int] | None = None
    while beyond - fits > 1:
        count = (fits + beyond) // 2
        found = list(tokenizer(" ".join(words[:count]), verbose=False).input_ids)
        if len(found) <= limit:
            fits, ids = count, found
        else:
            beyond = count
    return " ".join(words[:fits]), ids


@contextmanager
def _errors_as_ours() -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError, RuntimeError) as error:
        raise ExportError(
            f"torch cannot generate with this checkpoint: {first_line(error)}; mend its generation_config.json, "
            "or export with --no-check"
        ) from error
