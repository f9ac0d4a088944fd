"""Speed and memory of the bundles of a checkpoint beside other engines with the same weights, in turn.

Each engine runs in a process of its own (`tools.bench.peers`). All are alive at once, and each runs its jobs when its
turn comes, so that a slow moment of the machine meets all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.memory import Usage, usage_of
from tools.bench.peers.environments import OWN, PeerError, is_installed, python_of
from tools.bench.peers.jobs import RECORDING, TEXT
from tools.bench.peers.peer import Peer, convert
from tools.real_check.exports import Result
from tools.real_check.measures import word_error_rate
from tools.real_check.task import BEAMS, GREEDY, SETTINGS, Rows, Task

__all__ = ["ALONE", "OURS", "REFERENCE", "TOGETHER", "Engine", "Speed", "engines_of", "measure"]

REFERENCE, OURS = "transformers", "Tightbeam"
ALONE, TOGETHER = "greedy, 1 at a time", "4 beams, 8 at a time"
"""The jobs: one user's lines, and a file's."""
CONVERTED = ("bart", "llama", "marian")
"""Families that are converted for CTranslate2, besides Whisper, which faster-whisper runs."""
LINES_ALONE = 8
BATCH = 8
NEUTRAL: dict[str, Any] = {"min_new_tokens": 0, "no_repeat_ngram_size": 0, "length_penalty": 1.0}
"""Settings that other engines are told by number, if the checkpoint sets none."""
READ = ("forced_bos_token_id", "forced_eos_token_id", *NEUTRAL)


@dataclass(frozen=True)
class Engine:
    """A program in a precision, and the model that it runs.

    Attributes
    ----------
    program, precision, variant : str
        How tables call it; the variant is Tightbeam's.
    kind, form : str
        A file of ``tools/bench/peers/engines``, and the precision that is passed to it.
    environment : str
        A name of `tools.bench.peers.environments.ENVIRONMENTS`, or its ``OWN``.
    folder : Path
        The model.
    made_by : str
        The kind that converts the checkpoint into ``folder``; "" if it exists.
    jobs : tuple of str
        What it can do.
    """

    program: str
    precision: str
    variant: str
    kind: str
    form: str
    environment: str
    folder: Path
    made_by: str = ""
    jobs: tuple[str, ...] = (ALONE, TOGETHER)

    @property
    def name(self) -> str:
        """The name in tables."""
        return " ".join(filter(None, (self.program, self.variant, self.precision)))


@dataclass
class Speed:
    """What was measured of an engine.

    Attributes
    ----------
    program, precision, variant : str
        Those of `Engine`.
    start_s, load_s : float
        From the start of the process to the loaded model; and of this the load alone, after the imports.
    tokens_per_s : dict of str to float
        By job: medians over the rounds.
    equal, compared : dict of str to int
        By job: sequences that are transformers' in the same run, and all.
    usage : Usage or None
        Memory after the last round; None if there is no ``/proc``.
    word_errors : float or None
        Word error rate of all rows with beams.
    error : str
        Why the engine could not run; "" if it could.
    """

    program: str
    precision: str
    variant: str
    start_s: float = 0
    load_s: float = 0
    tokens_per_s: dict[str, float] = field(default_factory=dict)
    equal: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    usage: Usage | None = None
    word_errors: float | None = None
    error: str = ""


def engines_of(task: Task, results: Sequence[Result], environments: Path, work: Path) -> list[Engine]:
    """The engines that can run a checkpoint, of those that are installed, transformers first.

    Half precision, which the CPU has no products of, is timed in the default variant alone.
    """
    family, path = task.checkpoint.family.model_type, task.checkpoint.path
    engines = [Engine(REFERENCE, "", "", REFERENCE, "fp32", OWN, path)]
    for each in results:
        if each.bundle is not None and each.form.is_timed:
            precision = each.form.precision_label
            engines.append(Engine(OURS, precision, each.form.variant, "tightbeam", "", OWN, each.bundle.path))
    for form, label in (("fp32", "float32"), ("int8", "int8")):
        folder, other = work / f"ctranslate2-{form}", "ctranslate2"
        if family in CONVERTED:
            engines.append(Engine("CTranslate2", label, "", other, form, other, folder, other))
        if family == "whisper":
            engines.append(Engine("faster-whisper", label, "", "faster_whisper", form, other, folder, other))
        if family == "llama":
            folder = work / f"llama.cpp-{form}"
            engines.append(
                Engine("llama.cpp", label, "", "llama_cpp", form, "llama.cpp", folder, "llama_cpp", (ALONE,))
            )
    return [engine for engine in engines if is_installed(environments, engine.environment)]


def measure(
    task: Task, engines: Sequence[Engine], environments: Path, work: Path, rounds: int, threads: int
) -> dict[str, Speed]:
    """Measure engines in turn, by name; one that fails has an error, and the others go on.

    Parameters
    ----------
    task
        The task, whose rows are the jobs' inputs.
    engines
        Those of `engines_of`.
    environments, work
        Folders of the environments, and of models, inputs and logs.
    rounds
        Turns of each engine.
    threads
        Threads of each engine.
    """
    jobs = {name: list(_messages(task, name, work)) for name in (ALONE, TOGETHER)}
    found = {engine.name: Speed(engine.program, engine.precision, engine.variant) for engine in engines}
    seconds: dict[tuple[str, str], list[float]] = {}
    tokens: dict[tuple[str, str], dict[int, list[int]]] = {}
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for engine in engines:
            try:
                peers[engine.name] = _start(task, engine, environments, work, threads, found[engine.name], stack)
                for message in jobs[ALONE]:
                    peers[engine.name].run({**message[1], "batches": message[1]["batches"][:1]})
            except PeerError as error:
                found[engine.name].error = str(error)
        for _ in range(rounds):
            for engine in engines:
                for job in engine.jobs if not found[engine.name].error else ():
                    try:
                        each = [(rows, peers[engine.name].run(message)) for rows, message in jobs[job]]
                    except PeerError as error:
                        found[engine.name].error = str(error)
                        break
                    key = engine.name, job
                    seconds.setdefault(key, []).append(sum(result["seconds"] for _, result in each))
                    tokens[key] = {
                        row: own for rows, result in each for row, own in zip(rows, result["tokens"], strict=True)
                    }
        for name, peer in peers.items():
            if not found[name].error and sys.platform == "linux":
                found[name].usage = usage_of(peer.pid)
    for (name, job), times in seconds.items():
        own, wanted = tokens[name, job], tokens.get((REFERENCE, job), {})
        found[name].tokens_per_s[job] = sum(map(len, own.values())) / statistics.median(times)
        found[name].equal[job] = sum(wanted.get(row) == ids for row, ids in own.items())
        found[name].compared[job] = len(own)
        if job == TOGETHER and task.references and task.checkpoint.tokenizer is not None:
            texts = [task.checkpoint.tokenizer.decode(own[row], skip_special_tokens=True) for row in sorted(own)]
            found[name].word_errors = word_error_rate(texts, [task.references[row] for row in sorted(own)])
    return found


def _start(
    task: Task, engine: Engine, environments: Path, work: Path, threads: int, speed: Speed, stack: ExitStack
) -> Peer:
    python = python_of(environments, engine.environment)
    kind = RECORDING if task.is_speech else TEXT
    if engine.made_by and not engine.folder.exists():
        convert(python, engine.made_by, task.checkpoint.path, engine.folder, engine.form, kind)
    start = time.perf_counter()
    log = work / f"{engine.name.replace(' ', '-')}.log"
    peer = Peer(engine.name, python, engine.kind, engine.folder, engine.form, kind, threads, log)
    stack.callback(peer.close)
    speed.start_s, speed.load_s = time.perf_counter() - start, peer.loaded["seconds"]
    return peer


def _messages(task: Task, job: str, work: Path) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """The rows and the request of each part of a job: of recordings, those of one language run together."""
    rows = list(range(min(len(task.rows), LINES_ALONE) if job == ALONE else len(task.rows)))
    size = 1 if job == ALONE else BATCH
    generation = task.checkpoint.generation_config
    settings = {**SETTINGS[GREEDY if job == ALONE else BEAMS], **task.settings}
    message = {"eos": task.ends, "mels": 0}
    if not task.is_speech:
        settings |= {name: generation.get(name, NEUTRAL.get(name)) for name in READ}
        prompt = [] if task.decoder_only else [task.start]
        batches = [[task.rows[row] for row in rows[start : start + size]] for start in range(0, len(rows), size)]
        yield rows, {**message, "batches": batches, "settings": settings, "prompt": prompt}
        return
    settings["no_repeat_ngram_size"] = 0
    settings |= {name: generation.get(name) for name in ("suppress_tokens", "begin_suppress_tokens")}
    for language in dict.fromkeys(task.languages):
        own = [row for row in rows if task.languages[row] == language]
        names = [_saved(task.windows, own[start : start + size], work) for start in range(0, len(own), size)]
        prompt = [task.start]
        if generation.get("lang_to_id"):
            settings |= {"language": language}
            prompt += [generation["lang_to_id"][f"<|{language}|>"], generation["task_to_id"]["transcribe"]]
        prompt += [generation[name] for name in ("no_timestamps_token_id",) if name in generation]
        yield own, {**message, "batches": names, "settings": dict(settings), "prompt": prompt}


def _saved(windows: Rows, rows: list[int], work: Path) -> str:
    """Write windows one behind the other; the name of the file."""
    path = work / f"windows-{'-'.join(map(str, rows))}.npy"
    np.save(path, np.concatenate([windows[row] for row in rows]))
    return str(path)
