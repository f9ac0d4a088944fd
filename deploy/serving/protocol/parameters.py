"""Names in a served model's folder, configuration and environment, and defaults of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightbeam.deploy.errors import InputError

BUNDLE = "bundle"
"""The bundle's folder, next to model.py."""
ENGINE, MAX_ROWS, URL, DEADLINE = "engine", "max_rows", "url", "deadline_s"
MAX_REQUEST_ROWS = "max_request_rows"
"""Parameters in the model's configuration. A request may have a shorter deadline among its own parameters."""
MAX_PARAMETER_BYTES = 1 << 16
"""Bytes of a request's parameters."""
URL_VARIABLE = "TIGHTBEAM_TRITON_URL"
"""Environment variable with the server's HTTP address, in place of the one in the configuration."""


def default_beams(generation: Mapping[str, Any]) -> int:
    """Return the beams that a checkpoint searches with; 1 for a damaged setting, which the worker refuses."""
    beams = generation.get("num_beams")
    return beams if isinstance(beams, int) else 1


def most_rows(generation: Mapping[str, Any], max_batch_size: int, max_rows: int) -> int:
    """Return the most rows that take steps together.

    Parameters
    ----------
    generation
        Settings of the checkpoint.
    max_batch_size
        The most rows of a request.
    max_rows
        The most rows that an operator asks for; 0 for the default.

    Raises
    ------
    InputError
        The checkpoint's own beams are more, so that every request without ``num_beams`` would be refused.
    """
    beams = default_beams(generation)
    if 0 < max_rows < beams:
        problem = f"--max-rows {max_rows} is less than the {beams} beams that the checkpoint searches with"
        raise InputError(f"{problem}; pass {beams} or more")
    return max_rows or max_batch_size * max(4, beams)
