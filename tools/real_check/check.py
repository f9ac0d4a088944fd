"""The check of one checkpoint: torch's outcome, every export and its outcome, speed and memory."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tightbeam.deploy import Bundle
from tightbeam.deploy.console import say
from tightbeam.deploy.model.bundle_facts import cache_bytes, workload_of
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.errors import ExportError, first_line
from tools.real_check.bundle_side import by_bundle
from tools.real_check.exports import Form, Quality, Result, export_all, findings, forms_of
from tools.real_check.inputs import CheckError, inputs_of
from tools.real_check.measures import distance, divergence, perplexity, word_error_rate
from tools.real_check.outcome import WINDOWED, Outcome, equal
from tools.real_check.speed import BATCH, OURS, Speed, engines_of, measure
from tools.real_check.task import BEAMS, GREEDY, SETTINGS, Task, task_of
from tools.real_check.torch_side import by_torch, is_tie

__all__ = ["Options", "Report", "check"]

MB = 1_000_000


@dataclass(frozen=True)
class Options:
    """What is tried and measured.

    Attributes
    ----------
    variants, precisions : sequence of str
        Those to export; no variant is every one that the checkpoint can have.
    rounds : int
        Turns of each engine; 0 leaves speed and memory out.
    threads : int
        Threads of every engine, and of torch.
    environments, work : Path
        Folders of the other engines' environments, and of bundles, models and logs.
    """

    variants: Sequence[str]
    precisions: Sequence[str]
    rounds: int
    threads: int
    environments: Path
    work: Path


@dataclass
class Report:
    """Everything that was found of a checkpoint.

    Attributes
    ----------
    error : str
        Why it could not be tried at all; "" if it could.
    rows, parameters : int
        Lines or windows, and numbers of the model.
    torch : Quality or None
        That of torch's texts.
    speeds : dict of str to Speed
        By engine.
    """

    name: str
    family: str = ""
    error: str = ""
    rows: int = 0
    parameters: int = 0
    threads: int = 0
    torch: Quality | None = None
    results: list[Result] = field(default_factory=list)
    speeds: dict[str, Speed] = field(default_factory=dict)

    def wrong(self) -> list[str]:
        """What must not be: failed exports and engines of ours, and tokens of float32 that are not torch's."""
        said = [f"{self.name}: {self.error}"] if self.error else []
        for result in self.results:
            where = f"{self.name}, {result.form.name}"
            said += [f"{where}: {result.error}"] if result.error and not result.refused else []
            if result.form.is_exact:
                differing = {name: counts.differing for name, counts in result.counts.items()}
                speed, ties = self.speed_of(result.form), sum(counts.ties for counts in result.counts.values())
                if speed is not None:
                    differing |= {job: max(0, speed.compared[job] - same - ties) for job, same in speed.equal.items()}
                said += [
                    f"{where}: {count} sequences differ from torch's ({name})"
                    for name, count in differing.items()
                    if count
                ]
        ours = [speed for speed in self.speeds.values() if speed.program == OURS]
        return [*said, *(f"{self.name}: {speed.error}" for speed in ours if speed.error)]

    def speed_of(self, form: Form) -> Speed | None:
        """What was measured of a form; None if nothing was."""
        wanted = OURS, form.variant, form.precision_label
        speeds = self.speeds.values()
        return next((each for each in speeds if (each.program, each.variant, each.precision) == wanted), None)


def check(name: str, inputs: Path | None, options: Options) -> Report:
    """Check a checkpoint.

    Parameters
    ----------
    name
        A folder, an alias or a hub id.
    inputs
        The folder of real inputs; None is the one beside the checkpoint.
    options
        What is tried.

    Returns
    -------
    Report
        With what failed, inputs that do not suit the checkpoint among it.
    """
    import torch

    torch.set_num_threads(options.threads)
    say(f"{name}: loading it, and generating with torch")
    try:
        checkpoint = load_checkpoint(name)
        task = task_of(checkpoint, inputs_of(checkpoint.path, inputs))
        expected = by_torch(task)
    except (CheckError, ExportError) as error:
        return Report(name, error=str(error))
    except (ValueError, IndexError, RuntimeError) as error:
        return Report(name, error=f"torch cannot generate with this checkpoint: {first_line(error)}")
    parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    report = Report(checkpoint.name, checkpoint.family.model_type, "", len(task.rows), parameters, options.threads)
    report.torch = _quality(task, expected)
    work = options.work / checkpoint.name
    shutil.rmtree(work, ignore_errors=True)  # what was converted from the weights of an earlier run
    work.mkdir(parents=True)
    forms = forms_of(checkpoint.sizes, options.variants, options.precisions)
    for result in export_all(name, forms, work):
        _compare(task, expected, result, options.threads)
        report.results.append(result)
        say(f"{checkpoint.name}: {result.form.name} exported and compared")
    if options.rounds:
        engines = engines_of(task, report.results, options.environments, work)
        say(f"{checkpoint.name}: measuring {len(engines)} engines in turn")
        report.speeds = measure(task, engines, options.environments, work, options.rounds, options.threads)
    return report


def _compare(task: Task, expected: Outcome, result: Result, threads: int) -> None:
    """Add to the result of an export what its bundle is like."""
    bundle = result.bundle
    if bundle is None:
        return
    manifest = bundle.manifest
    result.found = findings(manifest)
    result.disk_mb = sum(entry.bytes for entry in manifest.files()) / MB
    result.weights_mb = manifest.weights.bytes / MB
    result.cache_mb = _cache_mb(task, bundle)
    try:
        outcome = by_bundle(task, bundle, threads)
    except ValueError as error:  # every error of a bundle that is loaded or run
        result.error = str(error)
        return

    def tie(name: str, index: int, sequence: list[int]) -> bool:
        return result.form.is_exact and is_tie(task, name, index, sequence)

    result.counts = equal(outcome, expected, tie)
    result.quality = _quality(task, outcome)
    if expected.distributions:
        result.divergence = divergence(expected.distributions, outcome.distributions)
        result.distance = distance(expected.distributions, outcome.distributions)


def _cache_mb(task: Task, bundle: Bundle) -> float:
    longest = None if task.is_speech else max(map(len, task.rows))
    size = workload_of(
        bundle.manifest,
        batch_size=BATCH,
        num_beams=SETTINGS[BEAMS]["num_beams"],
        source_length=longest,
        new_tokens=task.settings["max_new_tokens"],
    )
    return sum(cache_bytes(bundle.manifest, size)) / MB


def _quality(task: Task, outcome: Outcome) -> Quality:
    references, texts = task.references, outcome.texts
    words = {name: word_error_rate(texts[name], references) for name in texts} if references else {}
    if outcome.recordings and task.checkpoint.tokenizer is not None:
        tokens = [[token for part in parts for token in part.tokens] for parts in outcome.recordings]
        said = [task.checkpoint.tokenizer.decode(row, skip_special_tokens=True) for row in tokens]
        words[WINDOWED] = word_error_rate(said, task.waves_said)
    found = perplexity(outcome.log_probabilities) if outcome.log_probabilities else None
    known = task.checkpoint.generation_config.get("lang_to_id") if any(task.languages) else None
    languages = None
    if known:
        rows = zip(outcome.sequences[GREEDY], task.languages, strict=True)
        languages = sum(known.get(f"<|{language}|>") in row for row, language in rows)
    return Quality(words, found if found is not None and math.isfinite(found) else None, languages)
