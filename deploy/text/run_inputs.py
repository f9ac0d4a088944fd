"""Inputs of a file through the scheduler: read ahead in one thread, run in another, their results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tightbeam.deploy.errors import BundleError, DeviceError
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.queue import WINDOW
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, Scheduler
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import Output, TextSegment, join, output_of
from tightbeam.deploy.text.read_ahead import CAPACITY, ReadAhead

__all__ = ["OnSegments", "OpenInput", "run_inputs"]

OnSegments = Callable[[InputResult, list[TextSegment]], None]
"""Function that takes segments of a recording, and its result, which is not there yet."""

MOST_OPEN = 1024
"""Inputs that are read and have no result yet, or one that waits for that of an earlier input."""
PATIENCE_S = 0.02
"""Time for a typed line to come, while others run."""


@dataclass(eq=False)
class OpenInput:
    """An input, and what it gave so far.

    Attributes
    ----------
    result : InputResult
    samples : list of Sample
        Its samples: one, or the windows of an audio file.
    failure : ValueError or None
        Why it cannot be run.
    found : dict of int to SearchResult
        Results by the numbers of the samples.
    """

    result: InputResult
    samples: list[Sample]
    failure: ValueError | None = None
    found: dict[int, SearchResult] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """True where nothing of it is left to run."""
        return self.failure is not None or len(self.found) == len(self.samples)

    @property
    def is_one_sample(self) -> bool:
        """True where the tokens of the first sample are those of the result."""
        return len(self.samples) == 1

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        """Take the result of a sample, and return samples to run after it."""
        self.found[number] = result
        return []

    def new_segments(self, model: LoadedModel) -> list[TextSegment]:
        """Make the segments that were found since the last call, in order. Raises BundleError."""
        return []

    def outputs(self, model: LoadedModel) -> list[Output]:
        """Make the output of each sample: detokenise what was found. Raises BundleError."""
        return [
            output_of(model, self.found[sample.number], sample.options, sample.prompt_length) for sample in self.samples
        ]

    def output(self, model: LoadedModel) -> Output:
        """Make the output of what was found, with the windows joined. Raises BundleError."""
        outputs = self.outputs(model)
        return join(outputs) if model.has_windows or len(outputs) > 1 else outputs[0]

    def close(self) -> None:
        """Free what is kept for further samples."""

    def finish(self, model: LoadedModel) -> None:
        """Set the result to the output, or to why there is none."""
        self.close()
        if self.failure is None:
            try:
                self.result.set_output(self.output(model))
            except BundleError as error:  # of the tokenizer
                self.failure = error
        if self.failure is not None:
            self.result.error = str(self.failure)


def run_inputs(
    model: LoadedModel,
    inputs: Iterable[OpenInput],
    *,
    max_rows: int,
    typed: bool = False,
    ahead: int = CAPACITY,
    most_open: int = MOST_OPEN,
    on_segments: OnSegments | None = None,
) -> Iterator[OpenInput]:
    """Run inputs. Each of three threads is a bounded queue ahead of the next one, so that a slow caller slows them.

    Parameters
    ----------
    model
        The runner.
    inputs
        The inputs, made in a thread of their own. Samples have ascending numbers.
    max_rows
        Rows that run together, at most; no sample has more beams.
    typed
        Inputs may come slowly, so that those that are there do not wait for others.
    ahead
        Inputs that are read ahead, at most.
    most_open
        Inputs that run, or whose results wait for that of an earlier one, at most.
    on_segments
        Receives the segments of an input as they are found, behind all those of the inputs before it, and before it is
        yielded. It is called while the caller waits for the next input.

    Yields
    ------
    OpenInput
        Every input, finished, in their order.
    """
    read = ReadAhead(inputs, ahead)
    scheduler = model.scheduler(max_rows, _StopBeforeEncoding(read))
    segments_model = None if on_segments is None else model
    done = ReadAhead(_run(scheduler, read, typed, most_open, segments_model), joined=True)
    with done, read:
        while (item := done.get()) is not None:
            if isinstance(item, _Found):
                assert on_segments is not None
                on_segments(item.result, item.segments)
                continue
            item.finish(model)
            yield item


@dataclass(frozen=True)
class _Found:
    """Segments of an input that is not finished."""

    result: InputResult
    segments: list[TextSegment]


class _Stopped(BaseException):
    """The caller wants no more results. It is no `Exception`, which a scheduler would take for a sample's."""


class _StopBeforeEncoding(NullEvents):
    """Events that end a turn where the inputs are closed: a turn that fills an empty batch may take seconds."""

    def __init__(self, read: ReadAhead[OpenInput]) -> None:
        self._read = read

    def on_started(self, samples: Sequence[int]) -> None:
        if self._read.closed:
            raise _Stopped


def _run(
    scheduler: Scheduler,
    read: ReadAhead[OpenInput],
    typed: bool,
    most_open: int,
    segments_model: LoadedModel | None = None,
) -> Iterator[OpenInput | _Found]:
    """Run inputs as they come, and yield them in their order.

    With a ``segments_model``, whose tokenizer makes their text, each comes behind its segments, which come as they are
    found.
    """
    inputs: dict[int, OpenInput] = {}  # by line number, in order
    owners: dict[int, OpenInput] = {}  # by sample number
    try:
        while not read.closed:
            while scheduler.waiting <= WINDOW and len(inputs) < most_open:
                each = read.get(PATIENCE_S if typed and not scheduler.wants_more else None)
                if each is None:
                    break
                inputs[each.result.number] = each
                for sample in each.samples:
                    owners[sample.number] = each
                    scheduler.add(sample)
                if each.done and len(inputs) == 1:  # nothing before it to wait for
                    break
            if scheduler.active:
                _turn(scheduler, owners)
            for number in list(inputs):
                if segments_model is not None and (segments := _new_segments(inputs[number], segments_model)):
                    yield _Found(inputs[number].result, segments)
                if not inputs[number].done:
                    break
                yield inputs.pop(number)
            if not inputs and read.ended:
                return
    except _Stopped:
        return
    finally:
        scheduler.close()


def _new_segments(each: OpenInput, model: LoadedModel) -> list[TextSegment]:
    """The segments that were found since the last call; none of an input that has failed."""
    try:
        return [] if each.failure is not None else each.new_segments(model)
    except BundleError:  # of the tokenizer, which is raised again for the whole input
        return []


def _turn(scheduler: Scheduler, owners: dict[int, OpenInput]) -> None:
    """Take one turn, and give the owners of samples what these gave."""
    for ended in scheduler.turn():
        owner = owners.pop(ended.number, None)
        if owner is None:  # another sample of the same input has failed
            continue
        if not isinstance(ended, FailedSample):
            for sample in owner.take(ended.number, ended.result):
                owners[sample.number] = owner
                scheduler.add(sample)
        elif isinstance(ended.error, DeviceError) or not isinstance(ended.error, BundleError):
            raise ended.error  # every other sample would fail too
        else:
            owner.failure = ended.error
            for sample in owner.samples:
                if owners.pop(sample.number, None) is not None:
                    scheduler.cancel(sample.number)
