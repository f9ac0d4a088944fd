"""The interface between dispatcher and front: a client's request, which takes the worker's events."""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Literal

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.serving.protocol.log import log
from tightbeam.deploy.serving.protocol.messages import Event, FoundSegment, Request, Row, Token
from tightbeam.deploy.serving.protocol.named_files import SUFFIXES
from tightbeam.deploy.serving.protocol.parameters import BUNDLE, DEADLINE, MAX_PARAMETER_BYTES

__all__ = ["MOST_BYTES", "Outcome", "Responder", "bytes_fault", "deadline_of"]

Outcome = Literal["finished", "refused", "failed", "cancelled"]
"""Outcome of a request. Refused: an error of the client. Failed: an error of the server."""

MOST_BYTES = 1 << 28
"""Bytes of a request's inputs. A front has them in memory already; further copies are made of those that are taken."""
FOLDERS = re.compile(r"(?<![\w.~:/\\-])/(?:[\w.@+~-]+/)+(?=[\w.@+~-])")
"""The folders of an absolute path."""
MODEL_FOLDERS = "|".join((r"\d+", BUNDLE, *SUFFIXES))
"""Names of folders in a served model's folder: a version, and what it has."""


def bytes_fault(inputs: dict[str, Array]) -> str | None:
    """Return what is wrong with the size of a request's inputs; None if they have at most `MOST_BYTES`."""
    size = sum(map(_bytes, inputs.values()))
    if size <= MOST_BYTES:
        return None
    return f"the request has {size:,} bytes, expected {MOST_BYTES:,} at most; send its rows as requests of their own"


def _bytes(array: Array) -> int:
    return sum(map(len, array.ravel().tolist())) if array.dtype == object else array.nbytes


def deadline_of(parameters: str) -> float:
    """Return the seconds that a request asks for; infinity if it does not. The worker refuses a wrong number."""
    if DEADLINE in parameters and len(parameters) <= MAX_PARAMETER_BYTES:
        with suppress(ValueError, AttributeError, OverflowError, TypeError, RecursionError):
            deadline_s = float(json.loads(parameters).get(DEADLINE, math.inf))
            return deadline_s if deadline_s > 0 else math.inf
    return math.inf


def without_folders(message: str, folder: str) -> str:
    """Return a message without the folders of this machine: of each absolute path the last name is left.

    Parameters
    ----------
    message
    folder
        A folder whose path may have spaces and signs, which are not found otherwise; empty for none.
    """
    for own in {folder, os.path.realpath(folder)} if folder else ():
        message = re.sub(rf"{re.escape(own)}/(?:(?:{MODEL_FOLDERS})/)*", "", message)
    return FOLDERS.sub("", message)


class Responder(ABC):
    """A client's request, and its responses.

    Parameters
    ----------
    folder
        The model's folder, whose path no client is told.

    Attributes
    ----------
    size : int
        Rows of the request.
    deadline_s : float
        Seconds that the request asks for.
    outcome : Outcome or None
        None until the last response was sent.
    rows : dict of int to Row
        The results of rows that came so far.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self.size = 1
        self.deadline_s = math.inf
        self.outcome: Outcome | None = None
        self.rows: dict[int, Row] = {}
        self._streamed: dict[int, int] = {}  # tokens or segments that were sent, by row

    @property
    def open(self) -> bool:
        """True until the last response was sent."""
        return self.outcome is None

    @abstractmethod
    def read(self, number: int) -> Request | None:
        """Return the request for the worker. If it cannot be read, send the error and return None."""

    @abstractmethod
    def was_cancelled(self) -> bool:
        """Return True, once, if the client has cancelled the request, and send the last response."""

    @abstractmethod
    def add(self, event: Event) -> None:
        """Send the worker's event, or hold it until all rows are finished. If that is impossible, send an error."""

    @abstractmethod
    def fail(self, reason: str, *, client_error: bool) -> None:
        """Send an error as the last response. ``client_error``: the request is invalid; else the server failed."""

    def told(self, reason: str, *, failed: bool) -> str:
        """Return what the client is told: a reason without folders. That of a failure then goes to the log in whole."""
        told = without_folders(reason, self._folder)
        if failed and told != reason:
            log(f"tightbeam: a request has failed: {reason}")
        return told

    def is_new(self, event: Event) -> bool:
        """Return False for an event that came before: the row ran again, since its worker ended. Keep a `Row`."""
        if isinstance(event, Token | FoundSegment):
            if event.place <= self._streamed.get(event.row, 0):
                return False
            self._streamed[event.row] = event.place
        elif isinstance(event, Row):
            if event.row in self.rows:
                return False
            self.rows[event.row] = event
        return True
