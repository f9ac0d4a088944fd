"""What a search found for one input, in the form that users read it: without padding, and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.whisper import last_text_token
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.search import SearchResult

__all__ = ["Output", "join", "output_of", "text_of"]


@dataclass(frozen=True)
class Output:
    """The sequences of one input, best first.

    Attributes:
        sequences: token ids, without what pads them: from the start token on, and of a decoder-only model what comes
            after the prompt.
        scores: of beam search, one for each.
        texts: one for each, where the bundle has a tokenizer.
    """

    sequences: list[list[int]]
    scores: list[float] | None
    texts: list[str] | None


def output_of(runner: LoadedModel, found: SearchResult, options: GenerationOptions, prompt_length: int = 0) -> Output:
    """Of one sample's result, whose rows begin with ``prompt_length`` tokens of a decoder-only model's prompt."""
    given = 0 if runner.decoder_only else 1  # the start token may be an end token too
    rows = found.sequences[:, prompt_length:].tolist()
    sequences = [_without_padding(row, options.eos_token_ids, given) for row in rows]
    scores = None if found.scores is None else [float(np.float32(score)) for score in found.scores]
    if not runner.has_tokenizer:
        return Output(sequences, scores, None)
    return Output(sequences, scores, [text_of(runner, row, options) for row in sequences])


def text_of(runner: LoadedModel, sequence: Sequence[int], options: GenerationOptions) -> str:
    """Without what a speech model says of times."""
    last = last_text_token(runner.manifest.generation, options.vocab_size) if runner.is_speech else options.vocab_size
    return runner.decode([token for token in sequence if token <= last])


def join(windows: list[Output]) -> Output:
    """Of one recording, of the best sequences of its windows. They follow one another, so they have no score in common
    (``sequences`` of one input are alternatives)."""
    texts = [window.texts[0].strip() for window in windows if window.texts]
    return Output(
        sequences=[[token for window in windows for token in window.sequences[0]]],
        scores=windows[0].scores if len(windows) == 1 else None,
        texts=[" ".join(texts)] if texts else None,
    )


def _without_padding(row: list[int], ends: tuple[int, ...], given: int) -> list[int]:
    """A sequence up to its end token, sought after the ``given`` ones; what follows is there for longer neighbours."""
    end = next((index for index, token in enumerate(row) if index >= given and token in ends), len(row) - 1)
    return row[: end + 1]
