"""The text of one input in pieces, each as soon as no later token can change it."""

from __future__ import annotations

from collections.abc import Iterable

from tightbeam.deploy.inputs.output import TextSegment, detokenizer_of
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import Scheduler

__all__ = ["TextPieces"]


class TextPieces:
    """The pieces of the text of one input, which join to its best text.

    Parameters
    ----------
    model : Model

    Raises
    ------
    InputError
        The bundle has no tokenizer.
    """

    def __init__(self, model: Model) -> None:
        self._detokenizer = detokenizer_of(model, stripped=model.has_windows)
        self._known = 0

    def of_sample(self, scheduler: Scheduler, sample: Sample) -> str:
        """Return the text that is new since the last call, of an input whose only sample runs. Raises BundleError."""
        self._known = max(self._known, sample.prompt_length)
        tokens = scheduler.certain(sample.number, self._known).tolist()
        self._known += len(tokens)
        return "".join(map(self.add, tokens))

    def add(self, token: int) -> str:
        """Return the text that is new with the next token. Raises BundleError."""
        return self._detokenizer.add(token)

    def of_segments(self, segments: Iterable[TextSegment]) -> str:
        """Return the text of further segments of a recording. Raises BundleError."""
        return "".join(self.add(token) for segment in segments for token in segment.tokens)

    def rest(self, text: str) -> str:
        """Return the last piece of the whole text."""
        return self._detokenizer.rest(text)
