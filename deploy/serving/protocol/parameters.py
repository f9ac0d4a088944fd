"""Names in a served model's folder, configuration and environment, and defaults of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BUNDLE = "bundle"
"""The bundle's folder, next to model.py."""
TRIES, TRIE_SUFFIX = "tries", ".trie"
"""The folder of tries, next to model.py, and the suffix of their files."""
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


def default_rows(generation: Mapping[str, Any], max_batch_size: int) -> int:
    """Return the most rows that take steps together, for settings of a checkpoint and the most rows of a request."""
    return max_batch_size * max(4, default_beams(generation))
