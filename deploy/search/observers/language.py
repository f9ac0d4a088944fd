"""The probability of the language that a speech model finds in a window.

Source: transformers 5.24 `WhisperGenerationMixin.detect_language`, which takes the best language after the start token.
The probability is a softmax over the languages alone, as in OpenAI's whisper.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightbeam.deploy.generation.options import CHOSEN, GenerationOptions
from tightbeam.deploy.search.observers._observer import Observer
from tightbeam.deploy.search.rows import Rows
from tightbeam.deploy.search.step import SearchResult

__all__ = ["language"]


class LanguageProbability(Observer):
    """The probability of the most probable language. It stays None if the runtime gives no rows.

    Parameters
    ----------
    place : int
        The place of the language in the decoder prompt.
    choices : tuple of int
        The tokens of the languages.
    """

    def __init__(self, place: int, choices: tuple[int, ...]) -> None:
        self._place, self._choices = place, list(choices)
        self._probability: float | None = None

    def on_decoder(self, length: int, rows: Rows, row: int) -> None:
        if length == self._place:
            logits = rows.logits[row][self._choices].astype(np.float64)
            self._probability = float(1 / np.exp(logits - logits.max()).sum())

    def add_running(self, result: SearchResult) -> SearchResult:
        return replace(result, language_probability=self._probability)

    def add_finished(self, result: SearchResult) -> SearchResult:
        return self.add_running(result)


def language(options: GenerationOptions, beginning: int) -> Observer | None:
    """The observer of a sample whose decoder prompt leaves the language to the model."""
    if CHOSEN not in options.prompt:
        return None
    return LanguageProbability(options.prompt.index(CHOSEN), options.choices)
