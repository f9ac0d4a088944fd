"""The text of one sample in pieces, as its search makes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.inputs.output import Output, output_of
from tightbeam.deploy.inputs.text_pieces import TextPieces
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample

__all__ = ["AsyncTextStream", "TextStream"]


@dataclass
class _State:
    """The state that a stream and its generator share.

    The generator has no reference to the stream. So if the stream is garbage, the generator is closed with it.
    """

    result: Output | None = None
    closed: bool = False


class TextStream(Iterator[str]):
    """An iterator over the pieces of a generated text, which join to the whole text.

    The tokens of a piece are generated when it is asked for. A stream is a context manager, too, which closes it.

    Parameters
    ----------
    model : Model
    sample : Sample
        The only sample. It returns one sequence.

    Attributes
    ----------
    result : Output or None
        The whole text, its token ids and scores; None until the last piece is there, and of a closed stream.

    Raises
    ------
    GenerationError
        The sample returns several sequences.
    InputError
        The bundle has no tokenizer.
    """

    def __init__(self, model: Model, sample: Sample) -> None:
        returned = sample.options.num_return_sequences
        if returned > 1:
            raise GenerationError(
                f"num_return_sequences={returned} is for several texts, and a stream is one text; leave it out, or "
                "generate without a stream"
            )
        model.text.require_tokenizer()
        self._state = _State()
        self._pieces = _pieces(model, sample, self._state)

    @property
    def result(self) -> Output | None:
        """The whole text, its token ids and scores; None until the last piece is there, and of a closed stream."""
        return self._state.result

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the generation and free its buffers. If another thread makes a piece, that happens behind its step."""
        self._state.closed = True
        with suppress(ValueError):  # the generator runs in another thread
            self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTextStream(AsyncIterator[str]):
    """An asynchronous iterator over the pieces of a generated text. The event loop's executor makes each piece.

    Parameters
    ----------
    stream : TextStream

    Attributes
    ----------
    result : Output or None
        As of `TextStream`.
    """

    def __init__(self, stream: TextStream) -> None:
        self._stream, self._awaited = stream, False

    @property
    def result(self) -> Output | None:
        """The whole text, its token ids and scores; None until the last piece is there, and of a closed stream."""
        return self._stream.result

    async def __anext__(self) -> str:
        if self._awaited:
            raise InputError("two tasks read one stream at a time; give each task a stream of its own")
        import asyncio  # by then it is: with its SSL it takes a twentieth of the start of a command, which has no tasks

        self._awaited = True
        try:
            piece = await asyncio.get_running_loop().run_in_executor(None, next, self._stream, None)
        except BaseException:  # the task was cancelled, or the sample failed
            self._stream.close()
            raise
        finally:
            self._awaited = False
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __del__(self) -> None:
        self._stream.close()  # the executor's thread may have a reference to it for a moment longer

    async def aclose(self) -> None:
        """End the generation and free its buffers."""
        self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _pieces(model: Model, sample: Sample, state: _State) -> Generator[str]:
    """Run a sample, and yield its text in pieces. Its result is in ``state`` before the last piece is yielded."""
    scheduler = model.scheduler(sample.options.num_beams)
    pieces = TextPieces(model)
    with closing(scheduler.turns([sample])) as turns:
        for ended in turns:
            if ended:
                break
            if state.closed:
                return
            if piece := pieces.of_sample(scheduler, sample):
                yield piece
    output = output_of(model, ended[0].result, sample)
    assert output.texts is not None
    state.result = output
    if piece := pieces.rest(output.texts[0]):
        yield piece
