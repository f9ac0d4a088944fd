"""Silence for the libraries that read a checkpoint, and a panic inside one of them as an error."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging

__all__ = ["PanicError", "panics_as_errors", "quiet_transformers"]


class PanicError(RuntimeError):
    """A panic inside a Rust library, such as tokenizers; the message is that of the panic."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No log lines, progress bars or warnings of transformers, as it was before when left."""
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

    What is printed there otherwise appears when the block is left. A panic reaches Python as a BaseException, which
    `except Exception` does not catch; KeyboardInterrupt and SystemExit pass as they are.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        panic = False
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # pyo3 has no module that it could be imported from
                raise
            panic = True
            raise PanicError(str(error)) from error
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            if not panic:
                held_back.seek(0)
                os.write(2, held_back.read())
