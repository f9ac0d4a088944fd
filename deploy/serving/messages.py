"""Messages between Triton's Python backend and the worker, pickled, over a pipe that only these two processes hold.

backend -> worker    Batch, Cancel, Shutdown
worker -> backend    Ready or Failed, once the model is loaded or cannot be; for each Batch its events (Token, Row,
                     Refused), then Done or Failed
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.serving.watchdog import Server
from tightbeam.deploy.text.output import Output

__all__ = [
    "Batch",
    "Cancel",
    "Done",
    "Event",
    "Failed",
    "Ready",
    "Refused",
    "Request",
    "Row",
    "Shutdown",
    "Stats",
    "Token",
    "WorkerSettings",
]


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
        The most rows (samples x beams) that are run together.
    stream : bool
        Send the tokens of greedy search.
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
    """One client's request. ``inputs``: arrays [b, ...] by Triton's input names; ``parameters``: a JSON object."""

    number: int
    inputs: dict[str, Array]
    parameters: str


@dataclass(frozen=True)
class Batch:
    """Requests to run together."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Cancel:
    """Cancellation of a request of the current batch."""

    number: int


@dataclass(frozen=True)
class Shutdown:
    """End of the worker."""


@dataclass(frozen=True)
class Ready:
    """Event: the model is loaded."""


@dataclass(frozen=True)
class Failed:
    """Event: the model cannot be loaded, or a batch failed through a defect of Tightbeam."""

    message: str


@dataclass(frozen=True)
class Token:
    """The next token of a row, and the text that it adds."""

    number: int
    row: int
    token: int
    text: str


@dataclass(frozen=True)
class Row:
    """The whole result of a row. ``fill``: the token that pads its sequences."""

    number: int
    row: int
    output: Output
    fill: int


@dataclass(frozen=True)
class Refused:
    """A request that cannot be run. ``client_error``: the request is invalid; else the model failed."""

    number: int
    message: str
    client_error: bool = True


@dataclass
class Stats:
    """Work that was done. ``prefill_seconds``: up to the end of each batch's first step."""

    batches: int = 0
    samples: int = 0
    steps: int = 0
    tokens: int = 0
    prefill_seconds: float = 0.0
    step_seconds: float = 0.0


@dataclass(frozen=True)
class Done:
    """End of a batch."""

    stats: Stats = field(default_factory=Stats)


Event = Token | Row | Refused
