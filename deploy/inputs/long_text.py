"""A text with more tokens than a summariser has positions, which is run in chunks and rounds."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightbeam.deploy.documents.summary import summary
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import output_of
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult

__all__ = ["LongText"]

MOST_CHUNKS = 1 << 20
"""Chunks of a text, whose samples' numbers follow one another."""


@dataclass(eq=False)
class LongText(OpenInput):
    """A text that is being summarised. Its samples are the chunks of the present round.

    Attributes
    ----------
    model : Model
    settings : mapping
        Settings of ``model.generate``.
    rounds : generator
        A `summary`.
    """

    model: Model | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: Generator[list[str], Sequence[str], list[str]] | None = None
    _next: int = 0
    _ended: bool = False

    @classmethod
    def of(cls, model: Model, result: InputResult, text: str, settings: Mapping[str, Any]) -> LongText:
        """Cut a text into the chunks of the first round. Raises InputError and GenerationError."""
        rounds = summary(text, "en", model.text.fits)
        chunks = next(rounds)
        result.notes.append(
            f"the text is longer than the model's positions: {len(chunks)} chunks of it are summarised, and their "
            "summaries again; --truncate reads its beginning alone"
        )
        own = cls(result, [], None, model=model, settings=settings, rounds=rounds)
        own._next = result.number * MOST_CHUNKS
        own.samples = own._samples(chunks)
        return own

    def _samples(self, chunks: Sequence[str]) -> list[Sample]:
        assert self.model is not None
        samples = []
        for chunk in chunks:
            tokens, _ = self.model.text.encode(chunk, **self.settings)
            samples.append(self.model.sample(self._next, tokens, self.settings))
            self._next += 1
        return samples

    @property
    def done(self) -> bool:
        return self.failure is not None or self._ended

    @property
    def is_one_sample(self) -> bool:
        return False

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        super().take(number, result)
        assert self.model is not None and self.rounds is not None
        if any(sample.number not in self.found for sample in self.samples):
            return []
        try:
            made = [output_of(self.model, self.found[each.number], each) for each in self.samples]
            self.samples = self._samples(self.rounds.send([(each.texts or [""])[0] for each in made]))
        except StopIteration:
            self._ended = True
            return []
        except (BundleError, GenerationError, InputError) as error:
            self.failure = error
            return []
        return self.samples
