"""The jobs that all engines run: token ids or features, and settings of ``model.generate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.deploy import Bundle
from tightbeam.deploy.text.tokenizer import load_codec
from tools.demo.reports import generate
from tools.make_checkpoint import SHAPES, WHISPER

__all__ = [
    *("DEMO", "DEMO_CHECKPOINT", "RECORDING", "SOURCES", "SPEECH", "TEXT"),
    *("Job", "demo_job", "random_job", "task_of"),
]

TEXT, SPEECH, RECORDING = "text", "speech", "recording"
"""Tasks: of token ids, of a speech model's features, and of sound."""
DEMO = "demo"
DEMO_CHECKPOINT = Path("export/demo")
SOURCES = {
    **{"bart-base": 512, "bart-large-cnn": 512, "distilbart-cnn-12-6": 512, "marian-base": 128, "nllb-600m": 32},
    **{"whisper-tiny": 0, "whisper-base": 0, "whisper-small": 0, "whisper-large-v3-turbo": 0},
}
"""Source tokens of a sample; a speech model takes a window of features instead."""
SHORT = 2
"""New tokens of the shorter of two runs: time that both take is the encoder's, what the longer takes is the steps'."""

Samples = Sequence[Any]
"""Token ids of each sample, or for a speech model the number that its features are made from."""


@dataclass(frozen=True)
class Job:
    """Samples, and how they are generated.

    Attributes
    ----------
    new_tokens : int
        Tokens forced for every sample; 0 if each ends by itself.
    prompt : tuple of int
        Tokens that a sequence may begin with, and that are not counted.
    task : str
        What the samples are.
    mels : int
        Rows of the features of a speech model's samples.
    whole : bool
        A run takes all samples, batch by batch, rather than one batch of them.
    """

    samples: Samples
    settings: dict[str, Any]
    new_tokens: int
    prompt: tuple[int, ...]
    eos: int
    task: str = TEXT
    mels: int = 0
    whole: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """New tokens of each run that is timed, the whole job last."""
        if self.task == RECORDING:
            return (0, SHORT, self.new_tokens)  # of 0, the features alone
        return (SHORT, self.new_tokens) if self.new_tokens else (0,)

    def message(self, size: int, length: int, rows: int | None = None) -> dict[str, Any]:
        """A request to `worker`: batches of ``size``, the first ``rows`` samples alone if they are given."""
        samples = self.samples[: rows if rows is not None else None if self.whole else size]
        batches = [samples[start : start + size] for start in range(0, len(samples), size)]
        settings = dict(self.settings)
        if self.new_tokens:
            settings["max_new_tokens"] = length
            if self.task == TEXT:
                settings["min_new_tokens"] = length
        return {"batches": batches, "settings": settings, "prompt": self.prompt, "eos": [self.eos], "mels": self.mels}


def task_of(shape: str, recording: bool) -> str:
    """Return the task of a shape's model: recordings, if they are asked for in place of features."""
    if shape == DEMO or SHAPES[shape].family != WHISPER:
        return TEXT
    return RECORDING if recording else SPEECH


def random_job(
    shape: str, checkpoint: Path, count: int, source: int, beams: int, new_tokens: int, task: str = TEXT
) -> Job:
    """Random samples of a random checkpoint; nothing is forced or ends early, so that all take the same steps."""
    generation = json.loads((checkpoint / "generation_config.json").read_text(encoding="utf-8"))
    eos, start = generation["eos_token_id"], generation["decoder_start_token_id"]
    settings: dict[str, Any] = {"num_beams": beams, "no_repeat_ngram_size": 3}
    if beams > 1:
        settings |= {"length_penalty": 1.0, "early_stopping": True}
    if task != TEXT:
        # CTranslate2's Whisper has no least length, so the end is suppressed, which forces the same tokens.
        settings |= {"language": "en", "task": "transcribe", "suppress_tokens": [eos]}
        if task == RECORDING:  # where faster-whisper cuts at timestamps, and leaves out other special tokens
            settings["suppress_tokens"] = list(range(eos, SHAPES[shape].vocab_size))
        language, transcribe = generation["lang_to_id"]["<|en|>"], generation["task_to_id"]["transcribe"]
        prompt = (start, language, transcribe, generation["no_timestamps_token_id"])
        return Job(range(count), settings, new_tokens, prompt, eos, task, SHAPES[shape].mels)
    settings |= {"forced_bos_token_id": None, "forced_eos_token_id": None}
    vocabulary = SHAPES[shape].vocab_size - 1  # the last token of Marian's is padding
    rows = [np.random.default_rng(sample).integers(5, vocabulary, source).tolist() for sample in range(count)]
    return Job(rows, settings, new_tokens, (start,), eos)


def demo_job(bundle: Bundle, lines: int, beams: int) -> Job:
    """Reports that the demo model was not trained on, with its own settings."""
    codec = load_codec(bundle)
    own = bundle.manifest.generation
    assert codec is not None
    settings = {
        "num_beams": beams,
        "min_new_tokens": 1,
        "max_new_tokens": own["max_length"] - 1,
        **{name: own[name] for name in ("no_repeat_ngram_size", "length_penalty", "early_stopping")},
        **{name: own[name] for name in ("forced_bos_token_id", "forced_eos_token_id")},
    }
    rows = [codec.encode(report.text) for report in generate(7, lines, held_out=True)]
    return Job(rows, settings, 0, (own["decoder_start_token_id"],), own["eos_token_id"], whole=True)
