"""Messages between Triton's Python backend and the worker, pickled, over a pipe that only these two processes hold.

backend -> worker    Requests, Cancel, Shutdown
worker -> backend    Ready or Failed, once the model is loaded or cannot be; then Reports, with events of the requests:
                     Reading, Started, Token and FoundSegment, as many as there are; for each row a Row, or for the
                     whole request a Refused
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from pydantic import BaseModel

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.inputs.output import Output, TextSegment
from tightbeam.deploy.scheduling.events import Work

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
    stream : bool
        Send the tokens of greedy search, and the segments of recordings.
    server : Server
        The server to ask for a reload when the backend is killed.
    """

    bundle: str
    engine: str
    threads: int | None
    device: int | None
    max_rows: int
    stream: bool
    server: Server


@dataclass(frozen=True)
class Request:
    """One client's request.

    Attributes
    ----------
    number : int
        No other request of the worker has it.
    inputs : dict
        Arrays [b, ...] by Triton's input names.
    parameters : str
        A JSON object.
    alone : bool
        Run each of its samples in a batch of its own, since the worker ended while it ran before.
    entropy : bytes
        For draws without a seed, which are the same where the request is sent again: some of its tokens may be out.
    """

    number: int
    inputs: dict[str, Array]
    parameters: str
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
    """The model is loaded."""


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
    """Event: the files of a request are about to be decoded, or, where it has ``ended``, have been."""

    number: int
    ended: bool = False


@dataclass(frozen=True)
class Token:
    """Event: the next token of a row, its place among the row's new tokens, from 1, and the text that it adds.

    A row whose batch failed is run again, and so are the tokens that were sent.
    """

    number: int
    row: int
    place: int
    token: int
    text: str


@dataclass(frozen=True)
class FoundSegment:
    """Event: the next segment of a recording, its place among those of the row, from 1, and the text that it adds.

    A row whose worker ended is run again, and so are the segments that were sent.
    """

    number: int
    row: int
    place: int
    segment: TextSegment
    text: str


@dataclass(frozen=True)
class Row:
    """Event: the whole result of a row. ``fill``: the token that pads its sequences."""

    number: int
    row: int
    output: Output
    fill: int


@dataclass(frozen=True)
class Refused:
    """Event: a request cannot be run. ``client_error``: the request is invalid; else the model failed."""

    number: int
    message: str
    client_error: bool = True


Event = Started | Reading | Token | FoundSegment | Row | Refused


@dataclass
class Stats(Work):
    """Work that was done. ``tokens``: those in the sequences of the samples that ended."""

    tokens: int = 0


@dataclass(frozen=True)
class Report:
    """Events of requests, and the work since the last report."""

    events: tuple[Event, ...]
    stats: Stats
