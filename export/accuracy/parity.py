"""The comparison that ends an export: the same inputs through ``model.generate`` and through the finished bundle.

The bundle runs in a process without torch, by the command that its users run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.manifest import Manifest, ParityReport
from tightbeam.export.accuracy.counted_process import run_counted
from tightbeam.export.accuracy.reference import Generation, Reference, TextSamples, generate
from tightbeam.export.checkpoint.generation import disable_sampling
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.counts import count
from tightbeam.export.errors import ExportError

__all__ = ["TIE_TOLERANCE", "check_loads", "compare", "is_exact", "is_tie", "sequences_of"]

SCORE_TOLERANCE = 1e-3
"""Largest difference of a sequence score, per unit of score. The tokens decide; this finds a score that is wrong
rather than rounded (1e-4 was seen with torch itself, on ill-conditioned random weights)."""
TIE_TOLERANCE = 1e-6
"""Two sequences whose scores differ by less, per unit of score, are equally good in float32."""
LOAD = """
import sys
from tightbeam.deploy import BundleError, Runner
try:
    Runner.load(sys.argv[1], threads=1)
except BundleError as error:
    sys.exit(f"error: {error}")
"""
INPUT = "input"
"""Field of a JSON line that holds the sample; the other fields are settings."""


def is_exact(manifest: Manifest) -> bool:
    """True if a bundle's tokens must equal torch's in float32."""
    exact = not manifest.weight_threshold and manifest.precision == "fp32" and not manifest.int8_caches
    return exact and not manifest.short_audio


def compare(
    folder: Path, manifest: Manifest, reference: Reference, float32: Sequence[Sequence[list[int]]] | None = None
) -> ParityReport:
    """Run a bundle on the inputs of a reference, and compare tokens, texts and scores.

    A tie does not count as a difference: two sequences that are equally good in float32, or that torch swaps in
    float64.

    Parameters
    ----------
    folder
        Bundle folder, complete but for the report itself.
    manifest
        The bundle's manifest. For a bundle that is not exact (``is_exact``), differences are counted.
    reference
        Inputs, and what torch generated from them.
    float32
        What the same graphs give in float32 (``sequences_of``), to count the sequences that differ from theirs.

    Returns
    -------
    ParityReport
        Counts of samples, settings, equal tokens, ties and differences, and the largest relative error of a score.

    Raises
    ------
    ExportError
        The bundle does not run, a token, text or score of an exact bundle differs, or nothing could be compared.
    """
    tokens = ties = differing = 0
    differing_float32 = 0
    error = 0.0
    exact = is_exact(manifest)
    for number, (expected, records) in enumerate(_run_bundle(folder, reference)):
        for index, record in enumerate(records):
            if float32 is not None:
                differing_float32 += record.get("tokens") != float32[number][index]
            if record.get("tokens") != expected.sequences[index]:
                if not exact:
                    differing += 1
                    continue
                if is_tie(reference, expected, record, index):
                    ties += 1
                    continue
            tokens += len(expected.sequences[index])
            tolerance = SCORE_TOLERANCE if exact else float("inf")
            error = max(error, _score_error(record, expected, index, reference.samples.as_ids, tolerance))
    if not tokens and not differing:
        raise ExportError(
            "every sequence that this checkpoint generates is one of several that are equally good, so nothing can be "
            "compared; pass --no-check"
        )
    return ParityReport(
        samples=len(reference.samples.rows),
        settings=len(reference.generations),
        tokens=tokens,
        ties=ties,
        differing=differing,
        differing_float32=None if float32 is None else differing_float32,
        max_score_error=error,
    )


def sequences_of(folder: Path, reference: Reference) -> list[list[list[int]]]:
    """Run a bundle on the inputs of a reference; its best sequences, by setting and sample.

    Raises ExportError if the bundle does not run.
    """
    return [[record["tokens"] for record in records] for _, records in _run_bundle(folder, reference)]


def is_tie(reference: Reference, expected: Generation, record: dict[str, Any], index: int) -> bool:
    """True if rounding or a prompt's padding decides between the two sequences, rather than the model.

    ``record`` is a line of ``run-model``: its ``tokens``, and its ``score`` if it has one.

    The n-grams that transformers blocks and the repetitions that it penalises also count a prompt's padding. A bundle
    counts the tokens of the prompt alone.
    """
    if expected.scores is not None and record.get("score") is not None:
        score = expected.scores[index]
        if abs(float(record["score"]) - score) <= TIE_TOLERANCE * max(1.0, abs(score)):
            return True
    checkpoint = load_checkpoint(reference.checkpoint)
    disable_sampling(checkpoint)
    checkpoint.model.double()
    samples = reference.samples
    if isinstance(samples, TextSamples):
        samples, index = samples.alone(index), 0
    return record.get("tokens") == generate(checkpoint, samples, expected.settings).sequences[index]


def _score_error(record: dict[str, Any], expected: Generation, index: int, as_ids: bool, tolerance: float) -> float:
    """Relative error of the score. Raises ExportError if tokens, text or score differ."""
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


def check_loads(folder: Path) -> None:
    """Raise ExportError if no runner can load a bundle, which is complete but for its comparison."""
    command = [sys.executable, "-c", LOAD, str(folder)]
    _check_done(run_counted(command, lambda number, line: None))


def _check_done(done: subprocess.CompletedProcess[bytes]) -> None:
    """Raise ExportError if a process that ran the bundle failed."""
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        reason = next((line.removeprefix("error: ") for line in said if line.startswith("error: ")), said[-1])
        raise ExportError(
            f"the finished bundle does not run: {reason}; there is no new bundle: please report this with the "
            "checkpoint's config.json, unless memory or the disk is full"
        )


def _run_bundle(folder: Path, reference: Reference) -> list[tuple[Generation, list[dict[str, Any]]]]:
    """The command's JSON record of each sample under each setting, all from one run of the command."""
    samples, B = reference.samples, len(reference.samples.rows)
    beams = max(made.settings.get("num_beams") or 1 for made in reference.generations)  # of few samples more than B
    with tempfile.TemporaryDirectory() as scratch:
        inputs = samples.inputs(Path(scratch))
        lines = [{INPUT: each, **made.settings} for made in reference.generations for each in inputs]
        command = [sys.executable, "-m", "tightbeam.deploy.commands.run_model", str(folder), "-", "--json"]
        command += ["--json-input", INPUT, "--batch-size", str(max(B, beams))]
        command += ["--ids"] if isinstance(samples, TextSamples) and samples.as_ids else []
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        count("loading the bundle")
        done = run_counted(command, lambda number, _: count("sequences compared", number, len(lines)), text.encode())
    _check_done(done)
    records = [json.loads(line) for line in done.stdout.decode().splitlines()]
    if len(records) != len(lines):
        raise ExportError(f"the bundle gave {len(records)} results for {len(lines)} inputs")
    return [(made, records[first * B :][:B]) for first, made in enumerate(reference.generations)]
