"""What Triton's Python backend and the worker say to each other, pickled, over a pipe that only these two hold."""

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
    """What a worker is started with. ``device``: the GPU, by number; None for the CPU. ``stream``: tell of tokens."""

    bundle: str
    engine: str
    threads: int | None
    device: int | None
    max_rows: int
    stream: bool
    server: Server


@dataclass(frozen=True)
class Request:
    """One user's. ``inputs``: arrays by Triton's names, [b, ...] each; ``parameters``: a JSON object."""

    number: int
    inputs: dict[str, Array]
    parameters: str


@dataclass(frozen=True)
class Batch:
    """To the worker: run these; it ends with `Done`."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Cancel:
    """To the worker: nobody waits for this request of the batch any more."""

    number: int


@dataclass(frozen=True)
class Shutdown:
    """To the worker: end."""


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""


@dataclass(frozen=True)
class Failed:
    """The model cannot be loaded, or a batch could not be run by a fault of ours."""

    message: str


@dataclass(frozen=True)
class Token:
    """A row of a request goes on with this token, which adds this text."""

    number: int
    row: int
    token: int
    text: str


@dataclass(frozen=True)
class Row:
    """All that a row of a request gave. ``fill``: the token that pads rows."""

    number: int
    row: int
    output: Output
    fill: int


@dataclass(frozen=True)
class Refused:
    """A request cannot be run. ``own``: by a fault of its own."""

    number: int
    message: str
    own: bool = True


@dataclass
class Stats:
    """Of what was run: how much, and in how many seconds.

    ``prefill_seconds``: up to the end of each batch's first step."""

    batches: int = 0
    samples: int = 0
    steps: int = 0
    tokens: int = 0
    prefill_seconds: float = 0.0
    step_seconds: float = 0.0


@dataclass(frozen=True)
class Done:
    """The batch is over."""

    stats: Stats = field(default_factory=Stats)


Event = Token | Row | Refused
