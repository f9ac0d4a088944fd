"""The model file that Triton's Python backend loads.

The package tightbeam has to be installed for the Python that Triton runs.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from tightbeam.deploy.serving.backend import Backend


class TritonPythonModel:
    """The class that the Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle in this file's folder."""
        self._backend = Backend(args, pb_utils)

    def execute(self, requests: list[Any]) -> None:
        """Run requests, and send the responses of each through its response sender."""
        self._backend.execute(requests)

    def finalize(self) -> None:
        """Stop the worker process."""
        self._backend.close()
