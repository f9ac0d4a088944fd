"""Messages between a front (Triton's Python backend, or the HTTP server) and the worker.

They are pickled, and go over a pipe that only these two processes hold.

front -> worker     Requests, Cancel, Shutdown
worker -> front     Ready once the model is loaded, or Failed; then Reports with events of the requests: any number of
                     Reading, Started, Token and FoundSegment; at the end a Row for each row, or a Refused for the
                     whole request
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from pydantic import BaseModel

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.inputs.output import Output, TextSegment
from tightbeam.deploy.scheduling.events import Work
from tightbeam.deploy.serving.protocol.named_files import NO_FILES, NamedFiles

__all__ = [
    "Cancel",
    "Event",
    "Failed",
    "FoundSegment",
    "Reading",
    "Ready",
    "Refused",
    "Report",
    "Request",
    "Requests",
    "Row",
    "Server",
    "Shutdown",
    "Started",
    "Stats",
    "Token",
    "WorkerSettings",
]


class Server(BaseModel):
    """The server that a backend belongs to.

    Attributes
    ----------
    pid : int
        The server's process.
    url : str
        The server's HTTP address, as reached from its own machine.
    model : str
        The model's name.
    region : str
        The name of the shared memory between server and backend; empty if unknown.
    """

    pid: int
    url: str
    model: str
    region: str


class WorkerSettings(BaseModel):
    """Settings that a worker is started with.

    Attributes
    ----------
    bundle : str
        The bundle's folder.
    engine : str
        Runtime of the model, an ``engine`` of `Runner.load`.
    threads : int or None
        Threads on the CPU; None for all cores.
    device : int or None
        The GPU's number; None for the CPU.
    max_rows : int
        The most rows (samples x beams) that take steps together.
    max_request_rows : int or None
        The most rows (inputs) of a request; None for any number.
    files : NamedFiles
        Files that requests may name.
    server : Server or None
        The Triton server to ask for a reload when the backend is killed; None for another front, which ends with it.
    verified : tuple of str
        Fingerprints of the files that an earlier worker has compared with their SHA-256, of `VerifiedFiles`.
    """

    bundle: str
    engine: str
    threads: int | None
    device: int | None
    max_rows: int
    server: Server | None
    verified: tuple[str, ...] = ()
    max_request_rows: int | None = None
    files: NamedFiles = NO_FILES


@dataclass(frozen=True)
class Request:
    """One client's request.

    Attributes
    ----------
    number : int
        Unique among the worker's requests.
    inputs : dict
        Arrays [b, ...] by Triton's input names.
    parameters : str
        A JSON object.
    stream : bool
        Send tokens as soon as no step can change them, and the segments of recordings.
    alone : bool
        Run each of its samples in a batch of its own, because a worker ended while it ran.
    entropy : bytes
        The randomness of draws without a seed. A request that is sent again draws the same, because some of its tokens
        may have been streamed.
    """

    number: int
    inputs: dict[str, Array]
    parameters: str
    stream: bool = False
    alone: bool = False
    entropy: bytes = field(default_factory=lambda: secrets.token_bytes(16), compare=False)


@dataclass(frozen=True)
class Requests:
    """Requests that came together."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Cancel:
    """Cancellation of a request. It may have ended."""

    number: int


@dataclass(frozen=True)
class Shutdown:
    """End of the worker."""


@dataclass(frozen=True)
class Ready:
    """The model is loaded. ``verified``: fingerprints of the files that were compared with their SHA-256."""

    verified: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The model cannot be loaded."""

    message: str


@dataclass(frozen=True)
class Started:
    """Event: samples of a request are about to run."""

    number: int


@dataclass(frozen=True)
class Reading:
    """Event: the files or long texts of a request are about to be read, or, if ``ended``, have been read."""

    number: int
    ended: bool = False


@dataclass(frozen=True)
class Token:
    """Event: the next token of a row, its place among the row's new tokens, from 1, and the text that it adds.
    The texts of all tokens of a row join to its text.

    A row whose batch failed runs again, and sends its tokens again.
    """

    number: int
    row: int
    place: int
    token: int
    text: str


@dataclass(frozen=True)
class FoundSegment:
    """Event: the next segment of a recording, its place among the row's segments, from 1, and the text that it adds.

    A row whose worker ended runs again, and sends its segments again.
    """

    number: int
    row: int
    place: int
    segment: TextSegment
    text: str


@dataclass(frozen=True)
class Row:
    """Event: the whole result of a row. ``fill`` is the token that pads its sequences, ``seconds`` the length of its
    recording, ``notes`` what the client should know of it, such as that the file breaks off."""

    number: int
    row: int
    output: Output
    fill: int
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """Event: a request cannot be run. ``client_error`` is True if the request is invalid, False if the model failed."""

    number: int
    message: str
    client_error: bool = True


Event = Started | Reading | Token | FoundSegment | Row | Refused


@dataclass
class Stats(Work):
    """Work that was done. ``tokens`` counts the tokens of the samples that ended."""

    tokens: int = 0


@dataclass(frozen=True)
class Report:
    """Message with the events of requests, and the work since the last report."""

    events: tuple[Event, ...]
    stats: Stats
