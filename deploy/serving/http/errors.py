"""Errors of the HTTP server, each with a one-line message, as each client expects them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Busy", "HttpError", "ModelUnknown", "RequestFailed", "openai_error", "plain_error", "refused", "told_of"]

TOO_MANY_SEQUENCES = r"num_return_sequences={} \(.* can give"
"""The worker's refusal of more sequences than there are beams, with their number in place of ``{}``."""


class HttpError(Exception):
    """An error that a client gets.

    Parameters
    ----------
    status : int
        The HTTP status.
    message : str
        What was wrong, what was expected, and the fix, in one line. What it quotes of a client may hold line breaks
        and other signs that do not print; they become spaces.
    param : str, optional
        The field that was wrong.
    code : str, optional
        The name of the error among OpenAI's.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        message = "".join(sign if sign.isprintable() else " " for sign in message)
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


class RequestFailed(HttpError):
    """The worker refused the request (400), or failed to run it (503)."""

    def __init__(self, message: str, *, client_error: bool) -> None:
        super().__init__(400 if client_error else 503, message)


class Busy(HttpError):
    """Too many requests wait."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            429,
            f"{waiting} requests wait for this model already; send the request again later",
            code="rate_limit_exceeded",
        )


class ModelUnknown(HttpError):
    """No model has this name, or none takes such a request."""

    def __init__(self, message: str) -> None:
        super().__init__(404, message, param="model", code="model_not_found")


def refused(field: str, problem: str) -> HttpError:
    """Return the error for a field that is wrong, or that is not supported."""
    return HttpError(400, f"{field} {problem}", param=field)


@contextmanager
def told_of(field: str, pattern: str, problem: str = "") -> Iterator[None]:
    """Name the field that the client sent in an error of the worker.

    Parameters
    ----------
    field
        The client's field.
    pattern
        The beginning of the worker's refusals that are about it, a regular expression.
    problem
        What is said in their place; by default their own message.
    """
    try:
        yield
    except RequestFailed as error:
        if error.status != 400 or not re.match(pattern, error.message):
            raise
        raise HttpError(400, f"{field} {problem}" if problem else error.message, param=field) from None


def openai_error(error: HttpError) -> dict[str, Any]:
    """Write an error as OpenAI's clients read it."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def plain_error(error: HttpError) -> dict[str, Any]:
    """Write an error as LibreTranslate and Triton do."""
    return {"error": error.message}
