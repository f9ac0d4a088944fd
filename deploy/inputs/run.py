"""The loop that runs inputs: one thread reads ahead, another runs, and results come in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tightbeam.deploy.errors import BundleError, DeviceError, InputError
from tightbeam.deploy.inputs.open_input import OpenInput, PartedInput
from tightbeam.deploy.inputs.output import TextSegment
from tightbeam.deploy.inputs.read_ahead import CAPACITY, ReadAhead
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.text_pieces import TextPieces
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.queue import WINDOW
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, Scheduler

__all__ = ["FoundSegments", "FoundText", "finished", "run_inputs"]

MOST_OPEN = 1024
"""The most inputs that are read and have not been returned: without a result, or behind an earlier input."""
PATIENCE_S = 0.02
"""Seconds to wait for a typed line while others run."""


@dataclass(frozen=True)
class FoundSegments:
    """New segments of a recording that is still running, and its result, which is still empty."""

    result: InputResult
    segments: list[TextSegment]


@dataclass(frozen=True)
class FoundText:
    """A piece of the text of an input, and its result, which is empty before the last piece."""

    result: InputResult
    text: str


def run_inputs(
    model: Model,
    inputs: Iterable[OpenInput],
    *,
    max_rows: int,
    typed: bool = False,
    ahead: int = CAPACITY,
    most_open: int = MOST_OPEN,
    stream: bool = False,
) -> Iterator[OpenInput | FoundSegments | FoundText]:
    """Run inputs in two threads, with bounded queues between them and the caller: a slow caller slows them down.

    Parameters
    ----------
    model
        The loaded model.
    inputs
        The inputs, which a thread makes. Their samples have ascending numbers.
    max_rows
        The most rows that run together. No sample may have more beams.
    typed
        Inputs may come slowly, so inputs that are there do not wait for others.
    ahead
        The most inputs that are read ahead.
    most_open
        The most inputs that run, or whose results wait for an earlier input's.

    stream
        Give the best text of each input in pieces, too.

    Yields
    ------
    OpenInput, FoundSegments or FoundText
        Every input, finished, in order. The segments of a recording and pieces of text come as they are found, behind
        everything that belongs to earlier inputs.
    """
    read = ReadAhead(inputs, ahead)
    scheduler = model.scheduler(max_rows, _StopBeforeEncoding(read))
    done = ReadAhead(_run(scheduler, read, model, typed=typed, most_open=most_open, stream=stream), joined=True)
    with done, read:
        while (item := done.get()) is not None:
            if isinstance(item, OpenInput):
                item.finish(model)
                if item.pieces is not None and item.result.texts and (rest := item.pieces.rest(item.result.texts[0])):
                    yield FoundText(item.result, rest)
            yield item


def finished(items: Iterable[OpenInput | FoundSegments | FoundText]) -> Iterator[OpenInput]:
    """Yield the finished inputs among the items of `run_inputs`."""
    for item in items:
        if isinstance(item, OpenInput):
            yield item


class _Stopped(BaseException):
    """The caller wants no more results. The scheduler would take an `Exception` for a sample's failure."""


class _StopBeforeEncoding(NullEvents):
    """Events that end a turn once the inputs are closed, since a turn that fills an empty batch may take seconds."""

    def __init__(self, read: ReadAhead[OpenInput]) -> None:
        self._read = read

    def on_started(self, samples: Sequence[int]) -> None:
        if self._read.closed:
            raise _Stopped


def _run(
    scheduler: Scheduler, read: ReadAhead[OpenInput], model: Model, *, typed: bool, most_open: int, stream: bool = False
) -> Iterator[OpenInput | FoundSegments | FoundText]:
    """Run inputs as they come, and yield them in their order, each behind its segments and the pieces of its text."""
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
                if segments := _new_segments(inputs[number], model):
                    yield FoundSegments(inputs[number].result, segments)
                if stream and (text := _new_text(inputs[number], segments, model, scheduler)):
                    yield FoundText(inputs[number].result, text)
                if not inputs[number].done:
                    break
                yield inputs.pop(number)
            if not inputs and read.ended:
                return
    except _Stopped:
        return
    finally:
        scheduler.close()
        for each in inputs.values():
            each.close()


def _new_segments(each: OpenInput, model: Model) -> list[TextSegment]:
    """Return the segments that were found since the last call; none if the input has failed."""
    try:
        return [] if each.failure is not None else each.new_segments(model)
    except BundleError:  # from the tokenizer; it is raised again for the whole input
        return []


def _new_text(each: OpenInput, segments: list[TextSegment], model: Model, scheduler: Scheduler) -> str:
    """Return the text that is certain since the last call, with that of new segments; none if the input has failed."""
    if each.pieces is None:
        each.pieces = TextPieces(model)
    try:
        text = each.pieces.of_segments(segments)
        if each.failure is None and not each.done and each.is_one_sample:
            text += each.pieces.of_sample(scheduler, each.samples[0])
    except BundleError:  # from the tokenizer; it is raised again for the whole input
        return ""
    return text


def _turn(scheduler: Scheduler, owners: dict[int, OpenInput]) -> None:
    """Take one turn, and pass the results of samples to their inputs."""
    for ended in scheduler.turn():
        owner = owners.pop(ended.number, None)
        if owner is None:  # another sample of the same input has failed
            continue
        if not isinstance(ended, FailedSample):
            for sample in owner.take(ended.number, ended.result) or _next_part(owner):
                owners[sample.number] = owner
                scheduler.add(sample)
        elif isinstance(ended.error, DeviceError) or not isinstance(ended.error, BundleError):
            raise ended.error  # every other sample would fail too
        else:
            owner.failure = ended.error
            for sample in owner.samples:
                if owners.pop(sample.number, None) is not None:
                    scheduler.cancel(sample.number)


def _next_part(owner: OpenInput) -> list[Sample]:
    """Read the next part of an input, if it has one. If it cannot be read, the input has a failure."""
    if not isinstance(owner, PartedInput) or not owner.unread:
        return []
    try:
        owner.samples.append(owner.read_part())
    except InputError as error:
        owner.failure = error
        return []
    return owner.samples[-1:]
