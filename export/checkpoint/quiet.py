"""Silence for the libraries that read a checkpoint, and a panic inside one of them as an error."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from transformers.utils import logging as transformers_logging

from tightbeam.deploy.errors import is_panic

__all__ = ["PanicError", "panics_as_errors", "quiet_transformers"]


class PanicError(RuntimeError):
    """A panic inside a Rust library, such as tokenizers; the message is the panic's."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Context without log lines, progress bars or warnings of transformers."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic inside a Rust library into PanicError, and drop the report that Rust prints on standard error.

    Other output to standard error appears when the block ends. A panic reaches Python as a BaseException, which
    `except Exception` does not catch; KeyboardInterrupt and SystemExit pass unchanged.
    """
    with _stderr_held_back() as held_back:
        try:
            yield
        except BaseException as error:
            if not is_panic(error):
                raise
            held_back.seek(0)
            held_back.truncate()
            raise PanicError(str(error)) from error


@contextmanager
def _stderr_held_back() -> Iterator[IO[bytes]]:
    """Context in which file descriptor 2 is a file, whose content goes to standard error in the end."""
    with tempfile.TemporaryFile() as file:
        if sys.stderr is None:  # the command was started with it closed
            yield file
            return
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            os.write(2, file.read())
