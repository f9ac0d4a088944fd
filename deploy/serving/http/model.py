"""A model of the HTTP server: its worker, its requests, and what it can be asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.generation.whisper import has_timestamps
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.serving.dispatch.dispatcher import Dispatcher
from tightbeam.deploy.serving.dispatch.metrics import Metrics
from tightbeam.deploy.serving.dispatch.worker_process import WorkerProcess
from tightbeam.deploy.serving.http.errors import Busy, HttpError, RequestFailed
from tightbeam.deploy.serving.http.pending import Event, PendingRequest
from tightbeam.deploy.serving.protocol.messages import Row, WorkerSettings
from tightbeam.deploy.serving.protocol.named_files import NO_FILES, NamedFiles
from tightbeam.deploy.serving.protocol.parameters import most_rows
from tightbeam.deploy.serving.protocol.tensors import LENGTHS
from tightbeam.deploy.text.tokenizer import TextCodec, load_codec
from tightbeam.deploy.tries.file import check_tries

__all__ = ["ModelOptions", "ServedModel", "padded", "texts"]


@dataclass(frozen=True)
class ModelOptions:
    """Options of a served model.

    Attributes
    ----------
    engine : str
        Runtime of the model, an ``engine`` of `Runner.load`.
    threads : int or None
        Threads on the CPU; None for all cores.
    device : int or None
        The GPU's number; None for the CPU.
    max_batch_size : int
        The most rows of a request, and the most that wait in the worker.
    max_rows : int
        The most rows (samples x beams) that take steps together; 0: ``max_batch_size`` times the larger of 4 and the
        checkpoint's beams.
    max_queue_size : int
        The most requests that wait for a place in the worker; more are refused.
    deadline_s : float
        Seconds after which a request without its last response fails.
    """

    engine: str = "onnxruntime"
    threads: int | None = None
    device: int | None = None
    max_batch_size: int = 16
    max_rows: int = 0
    max_queue_size: int = 256
    deadline_s: float = 3600

    def rows(self, bundle: Bundle) -> int:
        """Return the limit of rows for a bundle. Raises InputError if the checkpoint's own beams exceed it."""
        return most_rows(bundle.manifest.generation, self.max_batch_size, self.max_rows)


class ServedModel:
    """A model that runs in a worker process. It is loaded at once.

    Parameters
    ----------
    name
        The model's name for clients.
    path
        The bundle's folder.
    options
        How it is served.
    metrics
        Makes the metrics of the model from its name and the most rows of a request.
    languages
        The pair of languages of a translator whose checkpoint names none.
    files
        Files that requests may name.

    Raises
    ------
    BundleError
        The bundle is damaged.
    InputError
        The checkpoint searches with more beams than ``options.max_rows``, or a trie cannot be used with it.
    WorkerError
        The model cannot be loaded.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        options: ModelOptions,
        metrics: Callable[[str, int], Metrics],
        languages: tuple[str, str] | None = None,
        files: NamedFiles = NO_FILES,
    ) -> None:
        self.name, self.pair, self._options = name, languages, options
        self.bundle = Bundle.load(path, verify=False)
        self.manifest = self.bundle.manifest
        check_tries(files.tries.values(), self.manifest.sizes.vocabulary)
        worker = WorkerProcess(
            WorkerSettings(
                bundle=str(path),
                engine=options.engine,
                threads=options.threads,
                device=options.device,
                max_rows=options.rows(self.bundle),
                server=None,
                files=files if self.manifest.takes_glossary else files.model_copy(update={"glossaries": {}}),
            )
        )
        most = options.max_batch_size
        self._dispatcher = Dispatcher(worker, most, metrics(name, most).add, options.deadline_s)
        self._submitter = ThreadPoolExecutor(1, f"requests of {name}")  # it waits for places in the worker
        self._queued = 0

    @property
    def max_batch_size(self) -> int:
        """The most rows of a request."""
        return self._options.max_batch_size

    @property
    def deadline_s(self) -> float:
        """Seconds after which a request without its last response fails."""
        return self._options.deadline_s

    @property
    def reads_text(self) -> bool:
        """True for a model of texts, rather than of speech or images."""
        return bool(self.manifest.reads_text)

    @property
    def has_timestamps(self) -> bool:
        """True for a speech model that predicts when each segment begins and ends."""
        return has_timestamps(self.manifest.generation, self.manifest.sizes.vocabulary)

    @property
    def has_times_of_words(self) -> bool:
        """True for a speech model that says when each word begins and ends."""
        options, heads = self._options, self.manifest.generation.get("alignment_heads")
        return bool(heads) and self.has_timestamps and (options.engine, options.device) == ("onnxruntime", None)

    @property
    def gives_attention(self) -> bool:
        """True for a translator whose outputs can have their attention to the source."""
        options, aligned = self._options, self.manifest.alignment is not None
        aligned = aligned and self.manifest.generation.get("num_beam_groups") in (None, 1)
        return self.manifest.translates and aligned and (options.engine, options.device) == ("onnxruntime", None)

    @property
    def ready(self) -> bool:
        """True while the worker runs, or is being started again."""
        return self._dispatcher.up

    @cached_property
    def codec(self) -> TextCodec | None:
        """The tokenizer, for the texts of single tokens."""
        return load_codec(self.bundle)

    @cached_property
    def log_mel(self) -> LogMel | None:
        """The feature extractor of a speech model over windows (Whisper); None for others."""
        about = self.manifest
        return LogMel.read(self.bundle.file(about.speech)) if about.speech and about.has_windows else None

    def check_rows(self, rows: int) -> None:
        """Raise HttpError for a request of too many rows."""
        if rows > (most := self._options.max_batch_size):
            raise HttpError(
                400, f"the request has {rows} inputs, expected {most} at most; send them in several requests"
            )

    async def events(
        self, inputs: dict[str, Array], settings: Mapping[str, Any], *, stream: bool = False
    ) -> AsyncIterator[Event]:
        """Run a request, and drop it if the caller stops.

        Parameters
        ----------
        inputs
            Arrays [b, ...] by the names of Triton's inputs.
        settings
            Settings of ``model.generate``.
        stream
            Give tokens and segments before the rows.

        Yields
        ------
        Token, FoundSegment or Row
            A `Row` for each row, in any order.

        Raises
        ------
        HttpError
            The request cannot be run, or failed.
        """
        rows = max(map(len, inputs.values()))
        self.check_rows(rows)
        if self._queued >= self._options.max_queue_size:
            raise Busy(self._queued)
        pending = PendingRequest(inputs, json.dumps(settings), rows=rows, stream=stream, folder=str(self.bundle.path))
        try:
            self._queued += 1
            try:
                submit, loop = self._dispatcher.submit, asyncio.get_running_loop()
                async with asyncio.timeout(min(self._options.deadline_s, pending.deadline_s)):
                    await loop.run_in_executor(self._submitter, submit, [pending], lambda each: each)
            except TimeoutError:
                raise RequestFailed(
                    "the request has found no place at its deadline; send it later", client_error=False
                ) from None
            finally:
                self._queued -= 1
            async for event in pending.events():
                yield event
        finally:
            pending.leave()

    async def rows(self, inputs: dict[str, Array], settings: Mapping[str, Any]) -> list[Row]:
        """Run a request, and return its rows in order. Raises HttpError."""
        found = [event async for event in self.events(inputs, settings) if isinstance(event, Row)]
        return sorted(found, key=lambda row: row.row)

    async def outputs(self, inputs: dict[str, Array], settings: Mapping[str, Any]) -> list[Output]:
        """Run a request, and return its outputs in order. Raises HttpError."""
        return [row.output for row in await self.rows(inputs, settings)]

    def close(self) -> None:
        """Stop the worker."""
        self._dispatcher.close()
        self._submitter.shutdown(cancel_futures=True)


def texts(values: Sequence[str | bytes]) -> Array:
    """Return texts or contents of files as an input of strings [b, 1]."""
    encoded = [each.encode("utf-8", "surrogatepass") if isinstance(each, str) else each for each in values]
    made = np.empty((len(encoded), 1), np.object_)
    made[:, 0] = encoded
    return made


def padded(name: str, rows: Sequence[Sequence[float]], kind: type) -> dict[str, Array]:
    """Return rows of numbers as the input ``name`` [b, n], padded on the right, with their LENGTHS."""
    made: Array = np.zeros((len(rows), max(map(len, rows))), kind)
    for place, row in enumerate(rows):
        made[place, : len(row)] = row
    return {name: made, LENGTHS: np.array([[len(row)] for row in rows], np.int32)}
