"""An input that is read and has no result yet: one sample, or parts of which a few run at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.inputs.output import Output, TextSegment, join, output_of
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.text_pieces import TextPieces
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult

__all__ = ["OpenInput", "PartedInput"]


@dataclass(eq=False)
class OpenInput:
    """An input that is being run, and its results so far.

    Attributes
    ----------
    result : InputResult
    samples : list of Sample
        The samples that were made so far: one, or windows of a recording.
    failure : ValueError or None
        The reason why it cannot be run.
    found : dict of int to SearchResult
        Results by the samples' numbers.
    made : Output or None
        The output, once the input is finished.
    pieces : TextPieces or None
        The pieces of its text that were found, if they are asked for.
    """

    result: InputResult
    samples: list[Sample]
    failure: ValueError | None = None
    found: dict[int, SearchResult] = field(default_factory=dict)
    made: Output | None = None
    pieces: TextPieces | None = None

    @property
    def done(self) -> bool:
        """True if nothing is left to run."""
        return self.failure is not None or len(self.found) == len(self.samples)

    @property
    def unread(self) -> int:
        """Parts that `PartedInput.read_part` has not read yet."""
        return 0

    @property
    def is_one_sample(self) -> bool:
        """True if the tokens of the first sample are the tokens of the result."""
        return len(self.samples) == 1

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        """Take the result of a sample, and return the samples to run after it."""
        self.found[number] = result
        return []

    def new_segments(self, model: Model) -> list[TextSegment]:
        """Make the segments that were found since the last call, in order. Raises BundleError."""
        return []

    def outputs(self, model: Model) -> list[Output]:
        """Decode the result of each sample. Raises BundleError."""
        return [output_of(model, self.found[sample.number], sample) for sample in self.samples]

    def output(self, model: Model) -> Output:
        """Make the output of the input, with its windows joined. Raises BundleError."""
        outputs = self.outputs(model)
        made = join(outputs) if model.has_windows or len(outputs) > 1 else outputs[0]
        return replace(made, cut=self.result.cut, cut_side=self.result.cut_side)

    def close(self) -> None:
        """Free the data that further samples would be made of."""

    def finish(self, model: Model) -> None:
        """Set the result: the output, or the reason for the failure."""
        self.close()
        if self.failure is None:
            try:
                self.made = self.output(model)
                self.result.set_output(self.made)
            except BundleError as error:  # of the tokenizer
                self.failure = error
        if self.failure is not None:
            self.result.error = str(self.failure)


@dataclass(eq=False)
class PartedInput(OpenInput):
    """An input of several parts (pages, or parts of a recording), of which a few are read and run at a time.

    The caller reads the parts after the first ones with `read_part`, and appends each to ``samples``. Reading may take
    seconds, so it may happen in another thread, one at a time, and the rest stays in the caller's.

    Attributes
    ----------
    count : int
        The number of parts.
    parts : iterator of Sample
        Makes each part's sample on demand. Raises InputError.
    free : function
        Frees the data that the parts are made of.
    paged : bool
        The output shows each part as a page.
    """

    count: int = 0
    parts: Iterator[Sample] = field(default_factory=lambda: iter(()))
    free: Callable[[], object] = lambda: None
    paged: bool = False

    def begin(self, together: int) -> PartedInput:
        """Make the samples of the first parts, at most ``together`` of them. Raises InputError."""
        self.samples.extend(islice(self.parts, together))
        return self

    @property
    def done(self) -> bool:
        return self.failure is not None or len(self.found) == self.count

    @property
    def unread(self) -> int:
        return 0 if self.failure is not None else self.count - len(self.samples)

    @property
    def is_one_sample(self) -> bool:
        return self.count == 1

    def read_part(self) -> Sample:
        """Read the next part, which the caller appends to the samples. Raises InputError if it cannot be read."""
        return next(self.parts)

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        super().take(number, result)
        place = next(place for place, sample in enumerate(self.samples) if sample.number == number)
        done = self.samples[place]
        self.samples[place] = replace(done, source=done.source[:0].copy())  # its features are not needed any more
        return []

    def output(self, model: Model) -> Output:
        if not self.paged:
            return super().output(model)
        pages = self.outputs(model)
        return replace(join(pages), pages=pages)

    def close(self) -> None:
        self.parts = iter(())
        self.free()
